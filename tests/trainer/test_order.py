"""The version of the order: of new runs, of runs and checkpoints that name none, of forks; and what traces them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from shards import ShardSet
from shards.format.windows.order import WindowOrder
from tests.support.given_windows import GivenWindows, note_given_windows
from trainer.checkpoint.folders import CHECKSUMS_FILE, STATE_FILE, hash_files

BATCH, STEPS, FORK = 8, 14, 6


@pytest.fixture(scope="module")
def small_set(make_set, tmp_path_factory) -> ShardSet:
    """A set of about 60 windows, so that a run comes to a third epoch. Read only."""
    return make_set(tmp_path_factory.mktemp("sets") / "s", shard_tokens={"train": [700, 900], "val": [300]})


@pytest.fixture(scope="module")
def arguments(small_set, recipe_file) -> tuple[object, ...]:
    return ("train", recipe_file, "--shards", small_set.path, "--set", "eval.every_steps=100")


@pytest.fixture(scope="module")
def begun(trainer, arguments, tmp_path_factory) -> dict[int, Path]:
    """A run of each version that stopped after six steps. Read only."""
    runs: dict[int, Path] = {}
    for version, options in ((1, ("--set", "train.order_version=1")), (2, ())):
        runs[version] = tmp_path_factory.mktemp("runs") / f"version{version}"
        done = trainer.run(*arguments, "--run", runs[version], "--set", f"train.steps={FORK}", *options)
        assert done.returncode == 0, done.stderr
    forget_version(runs[1])
    return runs


def forget_version(run: Path) -> None:
    """Make of a run of version 1 what was written before there were versions: no file names one."""
    for file in (run / "recipe.json", *run.glob(f"checkpoints/*/{STATE_FILE}")):
        content = json.loads(file.read_text())
        recipe = content.get("recipe", content)
        assert recipe["train"].pop("order_version") == 1
        file.write_text(json.dumps(content))
    for checkpoint in run.glob("checkpoints/*"):
        (checkpoint / CHECKSUMS_FILE).write_text(json.dumps(hash_files(checkpoint)))


def assert_order(given: GivenWindows, shard_set: ShardSet, version: int, *, first_step: int) -> None:
    """The steps from the first to the last were given the windows of a version."""
    shards = shard_set.splits["train"]
    order = WindowOrder([shard.num_tokens for shard in shards], seq_len=32, seed=1337, version=version)
    assert order.per_epoch * 2 < STEPS * BATCH
    places = [order.locate(number) for number in range((first_step - 1) * BATCH, STEPS * BATCH)]
    expected = [shards[place.shard].read(place.start, place.stop).tolist() for place in places]
    assert sorted(given) == list(range(first_step, STEPS + 1))
    assert [window for step in sorted(given) for window in given[step]] == expected


def read_version(run: Path) -> int:
    return json.loads((run / "recipe.json").read_text())["train"]["order_version"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_run_goes_on_in_its_own_version(trainer, arguments, begun, small_set, version, tmp_path, capsys):
    run = shutil.copytree(begun[version], tmp_path / "run")
    with note_given_windows() as given:
        done = trainer.run(*arguments, "--run", run, "--set", f"train.steps={STEPS}")
    assert done.returncode == 0, done.stderr
    assert_order(given, small_set, version, first_step=FORK + 1)
    assert read_version(run) == version
    # The trace finds the same documents, of steps before and after.
    for step in (3, FORK, FORK + 1, STEPS):
        found = json.loads(trainer.run("trace-step", run, "--step", step, "--limit", 0, "--json").stdout)
        rows: dict[int, list[int]] = {}
        for document in found["shown"]:
            whole = small_set.shard(document["shard"]).read(document["start"], document["start"] + document["tokens"])
            part = whole[document["position"] : document["position"] + document["in_window"]]
            rows.setdefault(document["batch_row"], []).extend(part.tolist())
        assert list(rows) == list(range(BATCH))
        if step > FORK:
            assert list(rows.values()) == given[step]


@pytest.mark.parametrize("version", [1, 2])
def test_a_fork_keeps_the_version_of_its_parent(trainer, arguments, begun, small_set, version, tmp_path):
    start = ("--run", tmp_path / "fork", "--from", begun[version] / f"checkpoints/step-{FORK:08d}")
    other = trainer.run(*arguments, *start, "--set", f"train.order_version={3 - version}")
    assert other.returncode == 2
    expected = f"train.order_version = {version}; the recipe has {3 - version}. Keep it, or start a new run."
    assert expected in other.stderr
    with note_given_windows() as given:
        done = trainer.run(*arguments, *start, "--set", f"train.steps={STEPS}")
    assert done.returncode == 0, done.stderr
    assert_order(given, small_set, version, first_step=FORK + 1)
    assert read_version(tmp_path / "fork") == version


def test_a_new_run_says_what_an_epoch_leaves_out(trainer, arguments, begun, tmp_path):
    assert read_version(begun[2]) == 2
    said = {
        version: trainer.run(*arguments, "--run", tmp_path / str(version), "--set", "train.steps=2", *options).stderr
        for version, options in ((1, ("--set", "train.order_version=1")), (2, ()))
    }
    assert "at shard ends are never predicted" in said[1]
    assert "at shard ends are left out of an epoch, in each epoch other ones" in said[2]
    done = trainer.run(*arguments, "--run", tmp_path / "3", "--set", "train.order_version=3")
    assert done.returncode == 2
    assert "train.order_version" in done.stderr


def test_the_account_of_a_run_counts_what_only_a_later_epoch_predicts(trainer, arguments, small_set, tmp_path):
    done = trainer.run(*arguments, "--run", tmp_path / "run", "--set", f"train.steps={STEPS}", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    order = WindowOrder([shard.num_tokens for shard in small_set.splits["train"]], seq_len=32, seed=1337)
    places = [order.locate(number) for number in range(STEPS * BATCH)]
    targets = [(place.shard, token) for place in places for token in range(place.start + 1, place.stop)]
    assert result["tokens_used"] == len(targets) == sum(row["used"] for row in result["tokens_by_source"].values())
    assert result["tokens_repeated"] == len(targets) - len(set(targets))
    assert result["tokens_repeated"] < len(targets) - order.targets  # the second epoch has tokens of its own
    assert result["tokens_cropped_per_epoch"] == order.cropped
