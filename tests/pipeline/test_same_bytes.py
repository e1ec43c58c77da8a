"""The bytes of a set do not depend on the way in which it is built: processes, kills, stores, clusters."""

# pyright: basic

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.builder.clean_report import read_clean_report
from shards.format.reader import open_set
from shards.stores.open import open_writable_store
from tests.support.builds import (
    Built,
    build_here,
    build_once,
    command,
    digests,
    real_documents,
    recipe_text,
    run_build,
    wait_until,
    write_corpus,
)
from tests.support.servers.objects import Proxy, aws_environment
from tests.support.slurm_cluster import SlurmCluster
from tests.support.started import Started, attempts, kill_in

EXHAUSTIVE = bool(os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"))
STAGES = ("evaluations", "tokenizer", "encode", "bands", "pairs", "similar", "mix", "assemble")
Fixture = Callable[[str], Any]


@pytest.fixture
def disk(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def small(recipe: Path, expected: dict[str, str]) -> Built:
    """Return the set of three sources, built on disk by one process."""
    return Built(recipe, recipe.parent / "set", {})


def write_large(folder: Path) -> Path:
    """Write a recipe without weights whose encode stage is long enough to be hit: of 4 files of 10 MB."""
    write_corpus(folder)
    for part in range(4):
        texts = [f"{part}.{copy} {text}" for copy in range(8) for text in real_documents()]
        table = pa.table({"text": texts, "score": [3] * len(texts)})
        pq.write_table(table, folder / f"prose-big-{part}.parquet", row_group_size=500)
    recipe = folder / "recipe.toml"
    text = recipe_text(folder, when_short='"error"', shard_tokens="500_000", vocab_size="2000")
    recipe.write_text(re.sub("weight = .*\n", "", text))
    return recipe


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return the set of `write_large`."""
    built = build_once(tmp_path_factory, "large", write_large)
    # All that cleaning left is in the set once, to the document.
    manifest = open_set(built.out).manifest
    held = {split: entry.sources for split, entry in manifest.splits.items()}
    for source in manifest.sources:
        train, val = held["train"][source.name], held["val"][source.name]
        assert (source.weight, source.tokens_available) == (train.tokens, train.tokens + val.tokens)
        assert source.documents_available == train.documents + val.documents
    return built


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A file system of 48 MB."""
    folder = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no permission to mount a small file system: {mounted.stderr.strip()}")
    yield str(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)


def start(recipe: Path, out: str, work: str) -> tuple[Started, int]:
    """Start a build with two workers; return it, and the process of one that encodes: its attempt is named by it."""
    build = Started(recipe, Path(out), "--workers", "2")
    wait_until(lambda: attempts(Path(work, "encode")), "a worker")
    return build, int(min(attempts(Path(work, "encode"))).name.split("-")[-2])


def interrupted(recipe: Path, out: str, work: str, fixture: Fixture) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        build, _ = start(recipe, out, work)
        if number == signal.SIGINT:
            os.killpg(build.process.pid, number)  # as a terminal does
        else:
            build.process.send_signal(number)
        code, errors = build.wait()
        assert code == 130
        assert "interrupted; run the same command" in errors
        assert "Traceback" not in errors
        shutil.rmtree(Path(work, "encode"))
    run_build(recipe, out)


def bereft_of_a_worker(recipe: Path, out: str, work: str, fixture: Fixture) -> None:
    build, worker = start(recipe, out, work)
    assert worker != build.process.pid
    os.kill(worker, signal.SIGKILL)
    code, errors = build.wait()
    assert code == 0, errors
    assert not list(Path(work).glob("*/.*"))  # the attempt's folder went with it


def on_a_disk_that_fills(recipe: Path, out: str, work: str, fixture: Fixture) -> None:
    build, _ = start(recipe, out, work)
    filler = Path(out).with_name("filler")
    with filler.open("wb", buffering=0) as file:
        while free := shutil.disk_usage(filler.parent).free:
            with contextlib.suppress(OSError):  # the build takes room, too
                file.write(bytes(min(free, 1 << 20)))
    code, errors = build.wait()
    assert code == 1, errors
    assert "The disk is full" in errors
    filler.unlink()
    run_build(recipe, out)


def by_two_processes(recipe: Path, out: str, work: str, fixture: Fixture) -> None:
    scratch = fixture("tmp_path") / "scratch"
    run_build(recipe, out, "--work", work, "--workers", "2", "--scratch", str(scratch))
    assert not [path for path in scratch.iterdir() if path.name != "cache"]


def killed(recipe: Path, out: str, work: str, fixture: Fixture) -> None:
    """Kill it in two stages; with `TOKENMILL_EXHAUSTIVE_TESTS` twenty times, in all stages."""
    stages = [*STAGES, *STAGES, *STAGES[2:6]] if EXHAUSTIVE else ["similar", "assemble"]
    chance = random.Random(12)
    for stage in sorted(stages, key=STAGES.index):
        while not kill_in(stage, recipe, Path(out), chance.uniform(0, 0.01)):
            shutil.rmtree(Path(work) / stage)  # its tasks had finished: they run again
    build_here(recipe, out)
    assert not attempts(*(Path(work) / stage for stage in STAGES), Path(out))


def killed_over_a_store(recipe: Path, out: str, work: str, fixture: Fixture) -> None:
    store = open_writable_store(out.removesuffix("/set"))
    for done in (r"set\.work/tokenizer/.*", r"set\.work/encode/.*/receipt\.json", r"set/train-00002\.bin\.zst"):
        build = subprocess.Popen(command(recipe, out), start_new_session=True, stderr=subprocess.DEVNULL)
        wait_until(lambda: any(re.fullmatch(done, file.name) for file in store.list()), done, pause_s=0.1)  # noqa: B023
        os.killpg(build.pid, signal.SIGKILL)
        build.wait()
    build_here(recipe, out)  # the lease of this host's process that has ended is taken over at once


def on_ray(recipe: Path, out: str, work: str, fixture: Fixture) -> None:
    run_build(recipe, out, "--engine", "ray", "--ray-address", fixture("ray_cluster").address)


def on_ray_over_requests_that_fail(recipe: Path, out: str, work: str, fixture: Fixture) -> None:
    monkeypatch, moto = fixture("monkeypatch"), fixture("moto")
    with Proxy(moto) as proxy:
        aws_environment(monkeypatch, proxy.url)
        proxy.faults.every(5, "reset", "503", "short", "stall", stall_s=0.1)
        on_ray(recipe, out, work, fixture)
        assert {record.fault for record in proxy.requests if record.fault} == {"reset", "503", "short", "stall"}
    aws_environment(monkeypatch, moto.url)


def on_slurm(recipe: Path, out: str, work: str, fixture: Fixture) -> None:
    """Two nodes of Slurm on loopback, on each of which the script of the recipes starts Ray."""
    script, log = Path(__file__).parents[2] / "recipes/slurm/build.sbatch", fixture("tmp_path") / "log"
    with SlurmCluster() as slurm:
        path = f"{Path(sys.executable).parent}:{slurm.environment['PATH']}"
        # On Linux Ray has this variable for nodes on 127.0.0.1.
        environment = slurm.environment | {"PATH": path, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
        submit = ["sbatch", "--wait", "--nodes=2", "--time=5", f"--output={log}", script]
        done = subprocess.run([*submit, recipe, "--out", out], env=environment, timeout=250, check=False)
    assert done.returncode == 0, log.read_text()
    assert log.read_text().count("Ray runtime started") == 2


WAYS: dict[str, tuple[str, str, str, Callable[[Path, str, str, Fixture], None]]] = {
    "two processes": ("whole", "disk", "disk", by_two_processes),
    "killed": ("whole", "disk", "disk", killed),
    "interrupted": ("large", "disk", "disk", interrupted),
    "a worker killed": ("large", "disk", "disk", bereft_of_a_worker),
    "a disk that fills": ("large", "small_disk", "small_disk", on_a_disk_that_fills),
    "a bucket": ("whole", "bucket", "bucket", by_two_processes),
    "work in a bucket": ("small", "disk", "bucket", by_two_processes),
    "set in a bucket": ("small", "bucket", "disk", by_two_processes),
    "killed over a bucket": ("small", "bucket", "bucket", killed_over_a_store),
    "Azure": ("small", "container", "container", by_two_processes),
    "Ray": ("whole", "disk", "disk", on_ray),
    "Ray without weights": ("large", "disk", "disk", on_ray),
    "Ray over requests that fail": ("small", "bucket", "bucket", on_ray_over_requests_that_fail),
    "Slurm": ("small", "disk", "disk", on_slurm),
}
"""What is built (`whole` has every feature on), where set and work folder are, and how."""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_bytes_of_one_process_on_a_disk(way: str, request: pytest.FixtureRequest):
    name, out_place, work_place, build = WAYS[way]
    built = request.getfixturevalue(name)
    out, work = (
        f"{request.getfixturevalue(place)}/{own}" for place, own in ((out_place, "set"), (work_place, "set.work"))
    )
    build(built.recipe, out, work, request.getfixturevalue)
    assert digests(out) == built.digests
    # The next build finds all done, and the work folder tells the same.
    again = build_here(built.recipe, out, "--work", work)
    assert (again["tasks_run"], again["problems"]) == (0, [])
    assert digests(out) == built.digests
    assert read_clean_report(work)["rows"] == read_clean_report(built.out.with_name("set.work"))["rows"]
    if out_place == work_place and "disk" not in out_place:  # leases and probes are gone
        names = [file.name for file in open_writable_store(request.getfixturevalue(out_place)).list()]
        assert {name.split("/")[0] for name in names} == {"set", "set.work"}
