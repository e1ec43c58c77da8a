"""The Ray executor on a real cluster: nodes and processes that die, versions that differ, addresses without a Ray."""

# pyright: basic

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine import ray_executor
from pipeline.engine.ray_executor import RayExecutor
from pipeline.engine.tasks import Call
from shards.errors import InputError, RunError
from shards.validation.validate import validate
from tests.support.builds import Built, build_here, digests, digests_in, wait_until
from tests.support.damage import flip_unseen
from tests.support.ray_cluster import RayCluster
from tests.support.recipes import source, write_recipe
from tests.support.servers.objects import ObjectServer, Proxy, aws_environment
from tests.support.slurm_cluster import SlurmCluster
from tests.support.small_recipe import write_small_recipe
from tests.support.stage_tasks import TaskError, make_calls
from tests.support.started import attempts

pytestmark = pytest.mark.long


SAID: list[str] = []
"""What the executor has said in this test."""


@pytest.fixture(scope="module")
def connection() -> Iterator[list[RayExecutor]]:
    """This process's connection to the cluster, while it is open: a process has one at a time."""
    opened: list[RayExecutor] = []
    yield opened
    disconnect(opened)


def disconnect(opened: list[RayExecutor]) -> None:
    while opened:
        opened.pop().close()


@pytest.fixture
def executor(ray_cluster: RayCluster, connection: list[RayExecutor]) -> RayExecutor:
    """An executor on the cluster, whose worker processes have loaded the libraries."""
    if not connection:
        connection.append(RayExecutor(ray_cluster.address, say=SAID.append))
    SAID.clear()
    return connection[0]


def run(executor: RayExecutor, calls: list[Call]) -> dict[int, tuple[int, int]]:
    """Run calls and return what each reported last: (bytes done, tokens made)."""
    counts: dict[int, tuple[int, int]] = {}
    executor.run(calls, lambda number, done, made: counts.update({number: (done, made)}))
    return counts


def test_a_build_gives_the_bytes_of_a_local_one(
    whole: Built,
    ray_cluster: RayCluster,
    run_process: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)
    done = run_process("build", whole.recipe, "--out", "ray", "--engine", "ray")
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "ray") == whole.digests
    dry = run_process(
        "build", whole.recipe, "--out", "ray", "--engine", "ray", "--dry-run", "--set", "split.val_tokens=9"
    )
    assert "split.val_tokens = 9 (was 4000)" in dry.stdout, dry.stderr
    # The build checks what the nodes have written.
    flip_unseen(tmp_path / "ray")
    done = run_process("build", whole.recipe, "--out", "ray", "--engine", "ray")
    assert done.returncode == 1, done.stderr
    problems = validate(tmp_path / "ray", level="full").problems
    assert [line for line in done.stdout.splitlines() if line.startswith("error: ")] == [
        f"error: {problem}" for problem in problems
    ]
    assert {problem.kind for problem in problems} >= {"file_checksum"}


def test_a_function_beside_the_recipe_goes_with_its_task(
    whole: Built, ray_cluster: RayCluster, run_process: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "rules.py").write_text(
        "def keep(texts):\n    return [len(text) > 200 or text.upper() for text in texts]\n"
    )
    flags = ["--set", "clean.python=[{function = 'rules:keep'}]", "--allow-code"]
    for out, engine in (("local", []), ("ray", ["--engine", "ray", "--ray-address", ray_cluster.address])):
        done = run_process("build", whole.recipe, "--out", out, *flags, *engine)
        assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "ray") == digests(tmp_path / "local") != whole.digests


def test_a_build_whose_nodes_die_gives_them_too(
    ray_cluster: RayCluster, run_process: Callable[..., Any], tmp_path: Path
) -> None:
    """Every node dies while it encodes, and again while it assembles; others come."""
    for name in ("even", "odd"):
        texts = (f"{name} {index} " + " ".join(str(index * word) for word in range(60)) for index in range(12_000))
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
    sources = [source(name, tmp_path / f"{name}.jsonl") for name in ("even", "odd")]
    shards = {"tokens": 2_000_000, "zstd_level": 15}  # each takes seconds
    recipe = write_recipe(tmp_path / "recipe.toml", *sources, shards=shards)
    build_here(recipe, tmp_path / "local")
    stages = {"encode": tmp_path / "ray.work/encode", "assemble": tmp_path / "ray"}
    with ThreadPoolExecutor(1) as thread:
        flags = ["--out", "ray", "--engine", "ray", "--ray-address", ray_cluster.address]
        building = thread.submit(run_process, "build", recipe, *flags)
        for folder in stages.values():
            wait_until(lambda: attempts(folder) or building.done(), "a task at work")  # noqa: B023
            for node in list(ray_cluster.nodes):
                ray_cluster.kill_node(node)
            ray_cluster.add_nodes(2)
        done = building.result()
    assert done.returncode == 0, done.stderr
    # A task whose node dies before it has begun is sent to another one without a word.
    assert "its node died; it runs again" in done.stderr
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")


def test_a_build_over_a_store_gives_them_too_although_requests_fail(
    recipe: Path,
    expected: dict[str, str],
    ray_cluster: RayCluster,
    run_process: Callable[..., Any],
    moto: ObjectServer,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Proxy(moto) as proxy:
        aws_environment(monkeypatch, proxy.url)
        proxy.faults.every(5, "reset", "503", "short", "stall", stall_s=0.1)
        engine = ["--engine", "ray", "--ray-address", ray_cluster.address]
        done = run_process("build", recipe, "--out", f"{bucket}/set", *engine)
        failed = {record.fault for record in proxy.requests if record.fault}
    assert done.returncode == 0, done.stderr
    assert failed == {"reset", "503", "short", "stall"}
    aws_environment(monkeypatch, moto.url)
    assert digests_in(f"{bucket}/set") == expected


@pytest.mark.timeout(300)
def test_the_script_for_slurm_gives_them_too(recipe: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """Two nodes of Slurm on loopback, on each of which the script starts Ray."""
    script = Path(__file__).parents[2] / "recipes/slurm/build.sbatch"
    with SlurmCluster() as slurm:
        path = f"{Path(sys.executable).parent}:{slurm.environment['PATH']}"
        # On Linux Ray has this variable for nodes on 127.0.0.1.
        environment = slurm.environment | {"PATH": path, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
        submit = ["sbatch", "--wait", "--nodes=2", "--time=5", f"--output={tmp_path}/log", script]
        done = subprocess.run([*submit, recipe, "--out", tmp_path / "set"], env=environment, timeout=250, check=False)
    log = (tmp_path / "log").read_text()
    assert done.returncode == 0, log
    assert log.count("Ray runtime started") == 2, log
    assert digests(tmp_path / "set") == expected


def test_other_versions_on_the_nodes_are_refused(
    executor: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "list_versions", lambda: {"Python": "3.0", "tokenmill": "0.0.1"})
    with pytest.raises(InputError, match=r"the driver has 3\.0; tokenmill"):
        run(executor, make_calls(tmp_path / "work/stage", [{"name": "a", "text": "x"}], "write_file"))


def test_a_task_that_raises_ends_the_stage(executor: RayExecutor, tmp_path: Path) -> None:
    calls = make_calls(tmp_path / "work/stage", [{"name": "bad", "text": "x", "fail": True}], "write_file")
    with pytest.raises(TaskError, match="halfway"):
        run(executor, calls)


def test_a_task_whose_process_dies_runs_again_until_it_is_hopeless(executor: RayExecutor, tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    times = {"a": 2, "b": 0, "c": 9}
    payloads = [{"name": name, "times": count, "deaths": str(deaths)} for name, count in times.items()]
    counts = run(executor, make_calls(tmp_path / "work/stage", payloads[:2], "die_or_write"))
    assert counts == {0: (2, 1), 1: (2, 1)}
    assert deaths.read_text().split() == ["a", "a"]
    assert len(SAID) == 2
    with pytest.raises(RunError, match="stage task c: lost 3 times"):
        run(executor, make_calls(tmp_path / "work/stage", payloads[2:], "die_or_write"))


def test_addresses_without_a_ray(tmp_path: Path, run_process: Callable[..., Any]) -> None:
    pytest.importorskip("ray")
    recipe = write_small_recipe(tmp_path)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        for address, message in {
            nobody: f"no Ray at {nobody}: [Errno 111] Connection refused. Start a cluster with `ray start --head`",
            "ray://head:10001": "Ray address 'ray://head:10001': expected HOST:PORT",
            "head": "Ray address 'head': expected HOST:PORT",
        }.items():
            done = run_process("build", recipe, "--out", "x", "--engine", "ray", "--ray-address", address)
            assert done.returncode == 2
            assert message in done.stderr
    assert not list(tmp_path.glob("x*"))
