"""Cool-downs that begin from a milestone of a long run."""

import itertools
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.trainer.conftest import read_steps

PEAK, FORK, STEPS, DECAY = 0.01, 6, 12, 4
WSD = ('schedule.kind="wsd"', "schedule.decay_steps=0")
COOL_DOWN = (WSD[0], f"train.steps={STEPS}", f"schedule.decay_steps={DECAY}")


@pytest.fixture(scope="module")
def long_run(train, tmp_path_factory) -> Path:
    """A run of 18 steps at the peak, with its checkpoint of step 6. Read only."""
    run = tmp_path_factory.mktemp("runs") / "long"
    train(run, *WSD, "train.steps=18", "checkpoint.keep_last=9")
    return run


@pytest.fixture(scope="module")
def milestone(long_run) -> Path:
    return long_run / f"checkpoints/step-{FORK:08d}"


@pytest.fixture(scope="module")
def cool_down(train, milestone, tmp_path_factory) -> Path:
    """A run of 12 steps that begins from the milestone. Read only."""
    run = tmp_path_factory.mktemp("runs") / "cool"
    done = train(run, *COOL_DOWN, more=("--from", milestone))
    assert "changed since the checkpoint: schedule.decay_steps = 4, not 0" in done.stderr
    assert "learning rate" not in done.stderr  # the next step of the long run is at the peak, too
    return run


def test_a_cool_down_follows_the_long_run_until_its_decay_begins(cool_down, long_run):
    cooled, whole = read_steps(cool_down), read_steps(long_run)
    assert [line["step"] for line in cooled] == list(range(1, STEPS + 1))
    assert cooled[: STEPS - DECAY] == whole[: STEPS - DECAY]
    assert {line["lr"] for line in whole[2:]} == {PEAK}
    rates = [line["lr"] for line in cooled[STEPS - DECAY - 1 :]]
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    assert rates[0] == PEAK
    assert rates[-1] == pytest.approx(0.1 * PEAK)
    assert cooled[-1]["loss"] != whole[STEPS - 1]["loss"]


def test_the_same_command_resumes_a_cool_down_although_the_milestone_is_gone(train, cool_down, milestone, tmp_path):
    moved, run = tmp_path / milestone.name, tmp_path / "cool"
    shutil.copytree(milestone, moved)
    train(run, *COOL_DOWN, more=("--from", moved))
    shutil.rmtree(run / f"checkpoints/step-{STEPS:08d}")  # as if it had been killed before the last one
    last = max((run / "checkpoints").iterdir())  # another one may be the one with the best validation loss
    shutil.rmtree(moved)
    done = train(run, *COOL_DOWN, more=("--from", moved))
    assert f"resumed from {last}" in done.stderr
    assert read_steps(run) == read_steps(cool_down)[FORK:]  # the copy has no metrics with it


def test_a_run_that_began_otherwise_is_refused_and_left_as_it_is(train, cool_down, long_run, milestone):
    other = long_run / "checkpoints/step-00000009"
    for run, start, began in ((cool_down, other, f"from {milestone}"), (long_run, milestone, "from step 0")):
        before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
        refused = train(run, *WSD, more=("--from", start, "--json"), status=2)
        (problem,) = refused.json["problems"]
        assert problem.startswith(f"{run}: began {began}, not from {start}. ")
        assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_learning_rate_that_jumps_is_printed(train, milestone, tmp_path):
    done = train(tmp_path / "run", WSD[0], "train.steps=8", "schedule.decay_steps=6", more=("--from", milestone))
    assert f"the learning rate of step {FORK + 1} = 0.00" in done.stderr


def test_a_fork_begins_again_after_a_full_disk_and_without_a_step_to_take(train, milestone, tmp_path, monkeypatch):
    begin, run = (*WSD, "train.steps=2"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("trainer.session.write_text", Mock(side_effect=OSError("no space left")))
        train(run, *begin, more=("--from", milestone), status=2)
    assert "complete after 6 steps" in train(run, *begin, more=("--from", milestone)).stdout
    assert (run / "checkpoints" / milestone.name).is_dir()
