"""The Ray executor on a real cluster: nodes and processes that die, versions that differ, addresses without a Ray."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.builds import digests
from tests.support.ray_cluster import RayCluster
from tests.support.small_recipe import write_small_recipe

STAGE = """
import json, sys
from pathlib import Path
from pipeline.engine import ray_executor
from pipeline.engine.tasks import Call, Task, digest_of
from shards.stores.store import FolderStore

address, stage, function, payloads = sys.argv[1:]
stage = Path(stage)
stage.parent.mkdir(exist_ok=True)
payloads = json.loads(payloads)
tasks = [Task(digest_of(payload), payload, 10, payload["name"]) for payload in payloads]
calls = [Call(f"tests.support.stage_tasks:{function}", task, FolderStore(stage), None) for task in tasks]
executor = ray_executor.RayExecutor(address, say=print)
counts = {}
try:
    print(executor.run(calls, lambda number, done, made: counts.update({number: (done, made)})))
except Exception as error:
    print(type(error).__name__, error)
print(counts)
executor.close()
"""
"""Runs a stage in a process of its own: a process joins one Ray cluster at a time."""


@pytest.fixture
def run_stage(ray_cluster: RayCluster, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Return `run(function, payloads, before="")`: a process that runs the stage and prints how it ended."""
    import json

    def run(function: str, payloads: list[dict[str, Any]], before: str = "") -> subprocess.Popen[str]:
        arguments = [ray_cluster.address, str(tmp_path / "work/stage"), function, json.dumps(payloads)]
        code = STAGE.replace("executor = ", before + "\nexecutor = ", 1)
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=ray_cluster.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return run


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_build_gives_the_bytes_of_a_local_one(
    tmp_path: Path, ray_cluster: RayCluster, run_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_small_recipe(tmp_path)
    local = run_cli("build", recipe, "--out", "local", "--workers", "1")
    assert local.returncode == 0, local.stderr
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)
    done = run_cli("build", recipe, "--out", "ray", "--engine", "ray")
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")


def test_a_task_that_raises_ends_the_stage(run_stage: Callable[..., subprocess.Popen[str]]) -> None:
    output, _ = run_stage("write_file", [{"name": "bad", "text": "x", "fail": True}]).communicate(timeout=60)
    assert "TaskError halfway" in output


def test_a_task_whose_process_dies_runs_again_until_it_is_hopeless(
    run_stage: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    deaths = tmp_path / "deaths"
    payloads = [
        {"name": name, "times": times, "deaths": str(deaths)} for name, times in {"a": 2, "b": 0, "c": 9}.items()
    ]
    output, _ = run_stage("die_or_write", payloads[:2]).communicate(timeout=60)
    assert "{0: (2, 1), 1: (2, 1)}" in output or "{0: (0, 0), 1: (2, 1)}" in output, output
    assert deaths.read_text().split() == ["a", "a"]
    output, _ = run_stage("die_or_write", payloads[2:]).communicate(timeout=60)
    assert "WorkerLostError stage task c: lost 3 times" in output


def test_a_node_that_dies_takes_no_task_with_it(
    run_stage: Callable[..., subprocess.Popen[str]], ray_cluster: RayCluster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    payloads = [{"name": name, "gate": str(gate), "began": str(tmp_path / name)} for name in "abcd"]
    process = run_stage("wait_for_gate", payloads)
    wait_for(lambda: sum((tmp_path / name).exists() for name in "abcd") == 2)
    ray_cluster.kill_node(ray_cluster.nodes[0])
    ray_cluster.add_node()
    wait_for(
        lambda: sum((tmp_path / name).read_text().count("began") for name in "abcd" if (tmp_path / name).exists()) > 2
    )
    gate.touch()
    output, _ = process.communicate(timeout=60)
    assert "its node died; it runs again" in output
    assert "{0: (1, 1), 1: (1, 1), 2: (1, 1), 3: (1, 1)}" in output, output


def test_other_versions_on_the_nodes_are_refused(run_stage: Callable[..., subprocess.Popen[str]]) -> None:
    versions = 'ray_executor.list_versions = lambda: {"Python": "3.0", "tokenmill": "0.0.1"}'
    output, _ = run_stage("write_file", [{"name": "a", "text": "x"}], before=versions).communicate(timeout=60)
    assert "the driver has 3.0; tokenmill" in output


@pytest.fixture
def web_server() -> Iterator[str]:
    """Return the address of a server that is not Ray."""
    from http.server import HTTPServer, SimpleHTTPRequestHandler
    from threading import Thread

    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_addresses_without_a_ray(tmp_path: Path, run_cli: Callable[..., Any], web_server: str) -> None:
    pytest.importorskip("ray")
    recipe = write_small_recipe(tmp_path)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        for address, message in {
            nobody: f"no Ray at {nobody}: [Errno 111] Connection refused. Start a cluster with `ray start --head`",
            web_server: f"no Ray at {web_server}: what listens there is not a Ray head",
            "ray://head:10001": "Ray address 'ray://head:10001': expected HOST:PORT",
            "head": "Ray address 'head': expected HOST:PORT",
        }.items():
            done = run_cli("build", recipe, "--out", "x", "--engine", "ray", "--ray-address", address)
            assert done.returncode == 2
            assert message in done.stderr
    assert not list(tmp_path.glob("x*"))
