"""The order of a run: what it, its fork and its trace give the model; a run of another version is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shards import ShardSet
from shards.format.windows.order import WindowOrder
from tests.support.given_windows import GivenWindows, note_given_windows
from trainer.checkpoint.folders import CHECKSUMS_FILE, STATE_FILE, hash_files

BATCH, STEPS, FORK = 8, 14, 6
FIRST = [(0, 67), (0, 451), (0, 419), (0, 515), (0, 355), (0, 195)]
"""The shard and the first token of the first windows of a run of `small_set`."""


@pytest.fixture(scope="module")
def small_set(make_set, tmp_path_factory) -> ShardSet:
    """A set of about 60 windows, so that a run comes to a third epoch. Read only."""
    return make_set(tmp_path_factory.mktemp("sets") / "s", shard_tokens={"train": [700, 900], "val": [300]})


@pytest.fixture(scope="module")
def arguments(small_set, recipe_file) -> tuple[object, ...]:
    return ("train", recipe_file, "--shards", small_set.path, "--set", "eval.every_steps=100", "--json")


@pytest.fixture(scope="module")
def run(trainer, arguments, tmp_path_factory) -> Path:
    """A run that stopped after six steps. Read only."""
    run = tmp_path_factory.mktemp("runs") / "run"
    done = trainer.run(*arguments, "--run", run, "--set", f"train.steps={FORK}")
    assert done.returncode == 0, done.stderr
    assert "at shard ends are left out of an epoch, in each epoch other ones" in done.stderr
    return run


def assert_order(given: GivenWindows, shard_set: ShardSet, order: WindowOrder) -> None:
    """The steps after the first six were given the windows of the order."""
    shards = shard_set.splits["train"]
    places = [order.locate(number) for number in range(FORK * BATCH, STEPS * BATCH)]
    expected = [shards[place.shard].read(place.start, place.stop).tolist() for place in places]
    assert sorted(given) == list(range(FORK + 1, STEPS + 1))
    assert [window for step in sorted(given) for window in given[step]] == expected


def test_a_fork_goes_on_where_its_parent_stops(trainer, arguments, run, small_set, tmp_path):
    order = WindowOrder([shard.num_tokens for shard in small_set.splits["train"]], seq_len=32, seed=1337)
    assert [(at.shard, at.start) for at in map(order.locate, range(6))] == FIRST
    assert order.per_epoch * 2 < STEPS * BATCH
    fork = ("--run", tmp_path / "fork", "--from", run / f"checkpoints/step-{FORK:08d}")
    with note_given_windows() as given:
        done = trainer.run(*arguments, *fork, "--set", f"train.steps={STEPS}")
    assert done.returncode == 0, done.stderr
    assert_order(given, small_set, order)
    # The trace finds the same documents, of steps before and after.
    for step in (3, FORK, FORK + 1, STEPS):
        found = json.loads(trainer.run("trace-step", tmp_path / "fork", "--step", step, "--limit", 0, "--json").stdout)
        rows: dict[int, list[int]] = {}
        for document in found["shown"]:
            whole = small_set.shard(document["shard"]).read(document["start"], document["start"] + document["tokens"])
            part = whole[document["position"] : document["position"] + document["in_window"]]
            rows.setdefault(document["batch_row"], []).extend(part.tolist())
        assert list(rows) == list(range(BATCH))
        if step > FORK:
            assert list(rows.values()) == given[step]
    # The account counts what only a later epoch predicts.
    result = json.loads(done.stdout)
    places = [order.locate(number) for number in range(STEPS * BATCH)]
    targets = [(place.shard, token) for place in places for token in range(place.start + 1, place.stop)]
    assert result["tokens_used"] == len(targets)
    assert sum(row["used"] for row in result["tokens_by_source"].values()) == pytest.approx(len(targets), abs=1)
    assert result["tokens_repeated"] == len(targets) - order.targets
    assert len(targets) - len(set(targets)) < result["tokens_repeated"]  # the second epoch has tokens of its own
    assert result["tokens_cropped_per_epoch"] == order.cropped


def test_a_run_of_another_version_is_refused(trainer, arguments, tmp_path):
    """A checkpoint counts windows: they are those of one order alone."""
    run = tmp_path / "run"
    assert trainer.run(*arguments, "--run", run, "--set", "train.steps=3").returncode == 0
    (checkpoint,) = run.glob("checkpoints/*")
    state = json.loads((checkpoint / STATE_FILE).read_text())
    (checkpoint / STATE_FILE).write_text(json.dumps(state | {"format_version": 2}))
    (checkpoint / CHECKSUMS_FILE).write_text(json.dumps(hash_files(checkpoint)))
    done = trainer.run(*arguments, "--run", run)
    assert done.returncode == 2
    assert "a checkpoint of version 2; expected version 3. Go on with the Tokenmill that wrote it, or" in done.stdout
    done = trainer.run(*arguments, "--run", tmp_path / "new", "--set", "train.order_version=2")
    assert (done.returncode, "'order_version' is gone: there is one order" in done.stdout) == (2, True)
