"""One recipe built on disk, into an object store on loopback, and on a Ray cluster of two nodes, by turns.

The object store is moto: of the servers at hand that create conditionally, which a build needs, the one that takes the
least processor time. It works on the same cores as the build. So its processor seconds are given apart: a store
elsewhere takes none of them from the build. Ray's cluster is up before the clock starts, and connecting to it, with
what its workers load, is timed with a recipe of one small file. Run alone:

    python -m tests.benchmarks.engines [--quick] [--rounds N] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.build import Usage, recipe_text, run_measured
from tests.benchmarks.material import MB, ROOT, corpus_files, median, text_bytes, write_copies, write_tokenizer

ROUNDS = 3
WORKERS = 2
PLACES = ("local", "s3", "ray")
SMALL_TEXT = 400_000


@dataclass(frozen=True)
class _Turn:
    """What one build took, and what the servers it used took meanwhile."""

    usage: Usage
    server_core_s: float
    stages: dict[str, float]


def bench_engines(
    work: Path, *, quick: bool = False, rounds: int = ROUNDS, only: Sequence[str] = PLACES
) -> dict[str, Any]:
    """Build 602 MB of text, or with `quick` 150 MB, in each place by turns.

    Returns:
        `text_mb`; for each place the medians `_s` by the clock and `_core_s` of the build's own processes;
        `s3_server_core_s` of the store's; `s3_ratio` and `ray_ratio` to local by the clock, the latter without
        `ray_start_s`, and `s3_core_ratio`, which leaves out the server; the seconds of each stage by the clock in
        the last round, as `stages_PLACE`.

    Raises:
        TopicSkippedError: the corpus is not there.
        RuntimeError: a build failed, or the sets differ.
    """
    files = corpus_files("bulk_prose")
    tokenizer = write_tokenizer(files, work / "tokenizer.json")
    files = files if quick else write_copies(files, work / "copies")
    (work / "engines.toml").write_text(recipe_text(files, tokenizer))
    small = work / "small.jsonl"
    small.write_text("".join(f'{{"text": "{number} {"a word " * 9}"}}\n' for number in range(SMALL_TEXT // 70)))
    (work / "small.toml").write_text(recipe_text([small], tokenizer).replace("100000", "1000"))
    turns: dict[str, list[_Turn]] = {name: [] for name in only}
    starts: dict[str, list[float]] = {name: [] for name in only}
    with contextlib.ExitStack() as stack:
        builders = {name: stack.enter_context(_OPENERS[name](work)) for name in only}
        for _ in range(rounds):
            for name, build in builders.items():
                starts[name].append(build("small.toml").usage.seconds)
                turns[name].append(build("engines.toml"))
    figures: dict[str, Any] = {"text_mb": text_bytes(files) / MB, "workers": WORKERS, "load": os.getloadavg()[1]}
    for name, own in turns.items():
        figures[f"{name}_s"] = median([turn.usage.seconds for turn in own])
        figures[f"{name}_core_s"] = median([turn.usage.core_seconds for turn in own])
        if name == "s3":
            figures["s3_server_core_s"] = median([turn.server_core_s for turn in own])
        if name == "ray":  # its tasks run in the cluster's processes
            figures["ray_core_s"] += median([turn.server_core_s for turn in own])
            figures["ray_start_s"] = max(0.0, median(starts["ray"]) - median(starts.get("local", [0.0])))
        figures[f"stages_{name}"] = own[-1].stages
    if "local" in turns and "s3" in turns:
        figures["s3_ratio"] = figures["s3_s"] / figures["local_s"]
        figures["s3_core_ratio"] = figures["s3_core_s"] / figures["local_core_s"]
    if "local" in turns and "ray" in turns:
        figures["ray_ratio"] = (figures["ray_s"] - figures["ray_start_s"]) / figures["local_s"]
    shutil.rmtree(work / "copies", ignore_errors=True)
    return figures


Builder = Callable[[str], _Turn]


@contextlib.contextmanager
def _local(work: Path) -> Generator[Builder]:
    def build(recipe: str) -> _Turn:
        return _build(work, recipe, str(work / "engine-set"), str(work / "engine-work"), {}, lambda: 0.0)

    yield build


@contextlib.contextmanager
def _s3(work: Path) -> Generator[Builder]:
    from tests.support.servers.objects import aws_settings, moto_store

    with moto_store() as server:

        def build(recipe: str) -> _Turn:
            server.reset()
            bucket = server.empty_bucket()
            environment = aws_settings(server.url)
            return _build(
                work, recipe, f"{bucket}/set", f"{bucket}/work", environment, lambda: _core_seconds(server.pid)
            )

        yield build


@contextlib.contextmanager
def _ray(work: Path) -> Generator[Builder]:
    from tests.support.ray_cluster import RayCluster

    with RayCluster() as cluster:

        def build(recipe: str) -> _Turn:
            engine = ["--engine", "ray", "--ray-address", cluster.address]
            place = (str(work / "engine-set"), str(work / "engine-work"))
            return _build(work, recipe, *place, cluster.environment, lambda: _core_seconds(os.getpid()), engine)

        yield build


_OPENERS = {"local": _local, "s3": _s3, "ray": _ray}


def _build(
    work: Path,
    recipe: str,
    out: str,
    place: str,
    environment: dict[str, str],
    server_core_seconds: Callable[[], float],
    engine: Sequence[str] = ("--workers", str(WORKERS)),
) -> _Turn:
    for folder in (out, place):
        if "://" not in folder:
            shutil.rmtree(folder, ignore_errors=True)
    before = server_core_seconds()
    command = ["-m", "pipeline", "build", str(work / recipe), "--out", out, "--work", place, *engine, "--json"]
    usage = run_measured(command, cwd=ROOT, **environment)
    used = server_core_seconds() - before
    report = json.loads(_read(place, "build.json", environment))
    return _Turn(usage, used, {name: facts["seconds"] for name, facts in report["stages"].items()})


def _read(place: str, name: str, environment: dict[str, str]) -> bytes:
    if "://" not in place:
        return Path(place, name).read_bytes()
    from shards.stores.open import open_store

    os.environ.update(environment)
    return open_store(place).read(name)


def _core_seconds(pid: int) -> float:
    """Return what a process and those below it have used, with those of them that have ended and were waited for.

    This process's own time, and what it waited for, is left out of its children's.
    """
    import psutil

    root = psutil.Process(pid)
    below = root.children(recursive=True)
    total = 0.0
    for process in below if pid == os.getpid() else [root, *below]:
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="+", choices=PLACES, default=list(PLACES))
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenmill-engines-") as folder:
        found = bench_engines(Path(folder), quick=flags.quick, rounds=flags.rounds, only=flags.only)
        print(json.dumps(found, indent=2))
