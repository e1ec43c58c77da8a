"""One recipe built on disk, into an object store on loopback, and on a Ray cluster of two nodes, by turns.

The object store is moto: of the servers at hand that create conditionally, which a build needs, the one that takes the
least processor time. It works on the same cores as the build. So its processor seconds are given apart: a store
elsewhere takes none of them from the build. Ray's cluster is up before the clock starts, and connecting to it, with
what its workers load, is timed with a recipe of one small file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.build import prose_recipe, recipe_text
from tests.benchmarks.harness import Figures, Usage, alternate, median, remove, run_python
from tests.benchmarks.material import corpus_files, write_copies

ROUNDS = 3
PLACES = ["local", "s3", "ray"]
SMALL_TEXT = 400_000


class _Turn(NamedTuple):
    """What one build took, and what the servers it used took meanwhile."""

    usage: Usage
    server_core_s: float
    stages: dict[str, float]


Builder = Callable[[str], _Turn]


def bench_engines(work: Path, quick: bool) -> Figures:
    """Build 602 MB of text, or with `quick` 150 MB, in each place by turns.

    Each place has its medians by the clock and of the build's own processes, and the seconds of each stage in the last
    round. Ratios are to local by the clock, `ray_ratio` without `ray_start_s`; `s3_core_ratio` leaves out the server.
    """
    files = None if quick else write_copies(corpus_files("bulk_prose"), work / "copies")
    (work / "engines.toml").write_text(prose_recipe(work, files=files))
    small = work / "small.jsonl"
    small.write_text("".join(f'{{"text": "{number} {"a word " * 9}"}}\n' for number in range(SMALL_TEXT // 70)))
    (work / "small.toml").write_text(recipe_text([small], work / "tokenizer.json").replace("100000", "1000"))

    def turn(build: Builder) -> tuple[float, _Turn]:
        return build("small.toml").usage.seconds, build("engines.toml")

    with contextlib.ExitStack() as stack:
        builders = {name: stack.enter_context(_OPENERS[name](work)) for name in PLACES}
        found = alternate(ROUNDS, {name: partial(turn, build) for name, build in builders.items()})
    remove(work, "copies")
    starts = {name: median([start for start, _ in runs]) for name, runs in found.items()}
    turns = {name: [own for _, own in runs] for name, runs in found.items()}
    figures: Figures = {"load": os.getloadavg()[1]}
    for name, own in turns.items():
        figures[f"{name}_s"] = median([run.usage.seconds for run in own])
        figures[f"{name}_core_s"] = median([run.usage.core_seconds for run in own])
        figures[f"{name}_server_core_s"] = median([run.server_core_s for run in own])
        figures[f"stages_{name}"] = own[-1].stages
    if "ray" in turns:  # its tasks run in the cluster's processes
        figures["ray_core_s"] += figures.pop("ray_server_core_s")
        figures["ray_start_s"] = max(0.0, starts["ray"] - starts.get("local", 0.0))
    if {"local", "s3"} <= turns.keys():
        figures["s3_ratio"] = figures["s3_s"] / figures["local_s"]
        figures["s3_core_ratio"] = figures["s3_core_s"] / figures["local_core_s"]
    if {"local", "ray"} <= turns.keys():
        figures["ray_ratio"] = (figures["ray_s"] - figures["ray_start_s"]) / figures["local_s"]
    return figures


@contextlib.contextmanager
def _local(work: Path) -> Generator[Builder]:
    yield partial(_build, work, str(work / "engine-set"), str(work / "engine-work"), {}, lambda: 0.0)


@contextlib.contextmanager
def _s3(work: Path) -> Generator[Builder]:
    from tests.support.servers.objects import aws_settings, moto_store

    with moto_store() as server:

        def build(recipe: str) -> _Turn:
            server.reset()
            bucket, used = server.empty_bucket(), partial(_core_seconds, server.pid)
            return _build(work, f"{bucket}/set", f"{bucket}/work", aws_settings(server.url), used, recipe)

        yield build


@contextlib.contextmanager
def _ray(work: Path) -> Generator[Builder]:
    from tests.support.ray_cluster import RayCluster

    with RayCluster() as cluster:
        engine = ["--engine", "ray", "--ray-address", cluster.address]
        place, used = (str(work / "engine-set"), str(work / "engine-work")), partial(_core_seconds, os.getpid())
        yield partial(_build, work, *place, cluster.environment, used, engine=engine)


_OPENERS = {"local": _local, "s3": _s3, "ray": _ray}


def _build(
    work: Path,
    out: str,
    place: str,
    environment: dict[str, str],
    server_core_seconds: Callable[[], float],
    recipe: str,
    *,
    engine: Sequence[str] = ("--workers", "2"),
) -> _Turn:
    from shards.stores.open import open_store

    remove(work, *(Path(folder).name for folder in (out, place) if "://" not in folder))
    before = server_core_seconds()
    command = ["-m", "tokenmill", "build", str(work / recipe), "--out", out, "--work", place, *engine, "--json"]
    usage, _ = run_python(command, **environment)
    used = server_core_seconds() - before
    os.environ.update(environment)
    report = json.loads(open_store(place).read("build.json"))
    return _Turn(usage, used, {name: facts["seconds"] for name, facts in report["stages"].items()})


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
