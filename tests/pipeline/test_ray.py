"""The Ray executor on a real cluster: nodes and processes that die, versions that differ, addresses without a Ray."""

# pyright: basic

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.engine.ray_executor import RayExecutor
from pipeline.engine.tasks import Call
from shards.errors import RunError
from shards.validation.validate import validate
from tests.support.builds import Built, build_here, digests, run_program, wait_until
from tests.support.damage import flip
from tests.support.ray_cluster import RayCluster
from tests.support.recipes import source, write_recipe, write_texts
from tests.support.stage_tasks import TaskError, make_calls
from tests.support.started import attempts

pytestmark = pytest.mark.long


SAID: list[str] = []
"""What the executor has said in this test."""


@pytest.fixture(scope="module")
def executor(ray_cluster: RayCluster) -> Iterator[RayExecutor]:
    """An executor on the cluster, whose worker processes have loaded the libraries."""
    with closing(RayExecutor(ray_cluster.address, say=SAID.append)) as executor:
        yield executor


def run(executor: RayExecutor, calls: list[Call]) -> dict[int, tuple[int, int]]:
    """Run calls and return what each reported last: (bytes done, tokens made)."""
    counts: dict[int, tuple[int, int]] = {}
    executor.run(calls, lambda number, done, made: counts.update({number: (done, made)}))
    return counts


def test_a_function_beside_the_recipe_goes_with_its_task_and_the_build_checks_the_nodes_work(
    whole: Built, ray_cluster: RayCluster, tmp_path: Path
):
    (tmp_path / "rules.py").write_text(
        "def keep(texts):\n    return [len(text) > 200 or text.upper() for text in texts]\n"
    )
    flags = ["--set", "clean.python=[{function = 'rules:keep'}]", "--allow-code"]
    on_ray = ["--out", "ray", "--engine", "ray", "--ray-address", ray_cluster.address]
    for place in (["--out", "local"], on_ray):
        done = run_program("build", whole.recipe, *flags, *place, cwd=tmp_path, expect=0)
    assert digests(tmp_path / "ray") == digests(tmp_path / "local") != whole.digests
    dry = run_program("build", whole.recipe, *flags, *on_ray, "--dry-run", "--set", "split.val_tokens=9", cwd=tmp_path)
    assert "split.val_tokens = 9 (was 4000)" in dry.stdout, dry.stderr
    tokens = tmp_path / "ray/train-00001.bin.zst"
    flip(tokens, tokens.stat().st_size // 2)
    (tmp_path / "ray.work/build.json").unlink()  # only a full validation can find it, and is due
    done = run_program("build", whole.recipe, *flags, *on_ray, cwd=tmp_path, expect=1)
    problems = validate(tmp_path / "ray", level="full").problems
    assert [line for line in done.stdout.splitlines() if line.startswith("error: ")] == [
        f"error: {problem}" for problem in problems
    ]
    assert {problem.kind for problem in problems} >= {"file_checksum"}


def test_a_build_whose_nodes_die_gives_them_too(ray_cluster: RayCluster, tmp_path: Path):
    """Every node dies while it encodes, and again while it assembles; others come."""
    for name in ("even", "odd"):
        texts = (f"{name} {index} " + " ".join(str(index * word) for word in range(60)) for index in range(12_000))
        write_texts(tmp_path / f"{name}.jsonl", texts)
    sources = [source(name, tmp_path / f"{name}.jsonl") for name in ("even", "odd")]
    shards = {"tokens": 2_000_000, "zstd_level": 15}  # each takes seconds
    recipe = write_recipe(tmp_path / "recipe.toml", *sources, shards=shards)
    build_here(recipe, tmp_path / "local")
    stages = {"encode": tmp_path / "ray.work/encode", "assemble": tmp_path / "ray"}
    with ThreadPoolExecutor(1) as thread:
        flags = ["--out", "ray", "--engine", "ray", "--ray-address", ray_cluster.address]
        building = thread.submit(run_program, "build", recipe, *flags, cwd=tmp_path)
        for folder in stages.values():
            wait_until(lambda: attempts(folder) or building.done(), "a task at work")  # noqa: B023
            for node in list(ray_cluster.nodes):
                ray_cluster.kill_node(node)
            ray_cluster.add_nodes()
        done = building.result()
    assert done.returncode == 0, done.stderr
    # A task whose node dies before it has begun is sent to another one without a word.
    assert "its node died; it runs again" in done.stderr
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")


def test_a_task_that_raises_ends_the_stage(executor: RayExecutor, tmp_path: Path):
    calls = make_calls(tmp_path / "work/stage", [{"name": "bad", "text": "x", "fail": True}], "write_file")
    with pytest.raises(TaskError, match="halfway"):
        run(executor, calls)


def test_a_task_whose_process_dies_runs_again_until_it_is_hopeless(executor: RayExecutor, tmp_path: Path):
    deaths = tmp_path / "deaths"
    SAID.clear()
    times = {"a": 2, "b": 0, "c": 9}
    payloads = [{"name": name, "times": count, "deaths": str(deaths)} for name, count in times.items()]
    counts = run(executor, make_calls(tmp_path / "work/stage", payloads[:2], "die_or_write"))
    assert counts == {0: (2, 1), 1: (2, 1)}
    assert deaths.read_text().split() == ["a", "a"]
    assert len(SAID) == 2
    with pytest.raises(RunError, match=r"stage task c: lost 3 times.*; the last time: "):
        run(executor, make_calls(tmp_path / "work/stage", payloads[2:], "die_or_write"))
