"""Builds on real clusters under everything that goes wrong there: minutes, for `make test-exhaustive`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.engine.ray_executor import RayExecutor
from shards.errors import RunError
from tests.support.builds import digests
from tests.support.ray_cluster import RayCluster
from tests.support.recipes import source, write_recipe
from tests.support.stage_tasks import make_calls

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"), reason="takes minutes: set TOKENMILL_EXHAUSTIVE_TESTS=1"
    ),
    pytest.mark.timeout(1800),
]
STAGES = ("tokenizer", "encode", "mix", "assemble")


@pytest.fixture(scope="module")
def recipe(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recipe of three sources, 87/10/3, whose tasks take seconds."""
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "corpora").symlink_to(corpora.resolve())
    sources = [
        source("fineweb-edu", "corpora/fineweb_edu/*.parquet", weight=87),
        source("finemath", "corpora/finemath/*.parquet", weight=10),
        source("python", f"{sysconfig.get_path('stdlib')}/asyncio/*.py", weight=3),
    ]
    tables: dict[str, Any] = {"mix": {"when_short": "shrink"}, "split": {"val_tokens": 20_000}}
    tables |= {"tokenizer": {"vocab_size": 8000}, "shards": {"tokens": 100_000}}
    return write_recipe(folder / "real.toml", *sources, name="real", **tables)


@pytest.fixture(scope="module")
def local(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the digests of the set that one local worker builds."""
    folder = tmp_path_factory.mktemp("local")
    build(recipe, folder / "one", "--workers", "1")
    build(recipe, folder / "two", "--workers", "2")
    assert digests(folder / "one") == digests(folder / "two")
    return digests(folder / "one")


def start(recipe: Path, out: Path, *flags: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tokenmill", "build", str(recipe), "--out", str(out), *flags]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def build(recipe: Path, out: Path, *flags: str, environment: dict[str, str] | None = None) -> str:
    return finish(start(recipe, out, *flags, environment=environment))


def finish(process: subprocess.Popen[str]) -> str:
    """Return what a build prints until it ends, with no error."""
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    return output


def wait_for(condition: Callable[[], Any], seconds: float = 300) -> Any:
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def test_ray_nodes_that_die_in_every_stage(
    recipe: Path, local: dict[str, str], ray_cluster: RayCluster, tmp_path: Path
) -> None:
    flags = ["--engine", "ray", "--ray-address", ray_cluster.address]
    process = start(recipe, tmp_path / "set", *flags, environment=ray_cluster.environment)
    for stage, following in zip(STAGES, (*STAGES[1:], "build.json"), strict=True):
        work = tmp_path / "set.work"
        wait_for(lambda: list((work / stage).glob(".*.tmp")) or (work / following).exists())  # noqa: B023
        for node in list(ray_cluster.nodes):
            ray_cluster.kill_node(node)
        ray_cluster.add_nodes(2)
    output = finish(process)
    assert output.count("its node died; it runs again") >= len(STAGES) - 1  # the mix is over in no time
    assert digests(tmp_path / "set") == local


def kill_readers(file: Path, stage: Path, ended: threading.Event) -> list[float]:
    """Kill each process that reads a file in an attempt at a task, as the kernel does when memory runs out.

    Returns:
        When each was killed, by the clock `time.monotonic`.
    """
    killed: dict[str, float] = {}
    while not ended.wait(0.01):
        for attempt in stage.glob(".*.tmp"):
            pid = re.fullmatch(r"\..+-(\d+)-[0-9a-f]{12}\.tmp", attempt.name)
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(int(pid[1])) if pid and attempt.name not in killed else None
                if process and str(file) in {opened.path for opened in process.open_files()}:
                    process.kill()
                    killed[attempt.name] = time.monotonic()
    return list(killed.values())


def test_a_task_that_dies_of_memory_three_times_ends_the_build(ray_cluster: RayCluster, tmp_path: Path) -> None:
    sources = [source(name, f"{name}.jsonl") for name in ("large", "small")]
    tables: dict[str, Any] = {"tokenizer": {"vocab_size": 1000, "sample_bytes": "300 KB"}}
    write_recipe(tmp_path / "recipe.toml", *sources, name="large", mix={"when_short": "shrink"}, **tables)
    for name, count in (("large", 80_000), ("small", 1000)):
        lines = (json.dumps({"text": f"{name} {n} " + " ".join(str(n * k) for k in range(60))}) for n in range(count))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    ended = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        killed = thread.submit(kill_readers, tmp_path / "large.jsonl", tmp_path / "set.work/encode", ended)
        try:
            flags = ["--engine", "ray", "--ray-address", ray_cluster.address]
            process = start(tmp_path / "recipe.toml", tmp_path / "set", *flags, environment=ray_cluster.environment)
            output, _ = process.communicate(timeout=200)
            over = time.monotonic()
        finally:
            ended.set()
    moments = killed.result()
    assert (process.returncode, len(moments)) == (1, 3), output
    assert over - moments[-1] < 30  # seconds, on a busy machine too
    assert "error: encode task large: " in output
    assert "lost 3 times, most often because memory ran out" in output
    assert "encode: 1 of 2 units was already encoded" in build(tmp_path / "recipe.toml", tmp_path / "set")


def test_ray_ends_a_task_when_memory_runs_out(tmp_path: Path) -> None:
    """Ray's memory monitor ends processes when a node has used too much: here 1 % of what this machine has."""
    payload = {"name": "large.jsonl b0-100", "gate": str(tmp_path / "never"), "began": str(tmp_path / "a")}
    calls = make_calls(tmp_path / "work/stage", [payload], "wait_for_gate")
    said: list[str] = []
    with (
        RayCluster(memory_usage_threshold=0.01, memory_monitor_refresh_ms=100) as cluster,
        contextlib.closing(RayExecutor(cluster.address, say=said.append)) as executor,
        pytest.raises(RunError, match=r"task large.jsonl b0-100: lost 3 times") as lost,
    ):
        executor.run(calls, lambda *_: None)
    assert len(said) == 2
    how = r"Ray ended the process with \S+GB of memory, because its node \S+ ran out of memory: \S+ used / \S+ limit\."
    assert re.search(how, str(lost.value)), lost.value
