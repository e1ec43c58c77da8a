"""A run's record is true: which keys of the recipe held for which steps, whatever a later `train` is given."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.shard_sets import files_of
from trainer.optim import learning_rate
from trainer.recipe import load_train_recipe
from trainer.results.comparison import compare_runs
from trainer.results.runs import read_run, read_runs
from trainer.weights.trained_model import load_model

NEW = ("optimizer.lr=0.5", "eval.max_tokens=500", "schedule.min_lr_ratio=0.9", 'log.wandb_project="other"')


def list_differences(*runs: Path) -> dict[str, list[Any]]:
    """Return the keys that differ between runs, with each run's value."""
    compared = read_runs(runs)
    return {row["key"]: [row[run.name] for run in compared] for row in compare_runs(compared)["changes"]}


def assert_rates_are_those_of_the_record(run: Path) -> None:
    """Every learning rate in the metrics is that of the recipe that the record gives for its step."""
    found = read_run(run)
    for line in (line for line in found.records if "loss" in line):
        held = [
            f"{key}={next(one['value'] for one in reversed(values) if one['from_step'] <= line['step'])}"
            for key, values in found.list_values().items()
            if key in ("optimizer.lr", "train.steps") and isinstance(values, list)
        ]
        assert line["lr"] == learning_rate(line["step"] - 1, load_train_recipe(run / "recipe.json", held))


@pytest.mark.parametrize("extra", [(), ("train.steps=20", f"name={'x' * 9_999}")], ids=["", "fewer steps"])
def test_a_finished_run_keeps_its_record(train, run, extra, tmp_path):
    shutil.copytree(run, copy := tmp_path / "run")
    before = files_of(copy)
    done = train(copy, "train.steps=40", *NEW, *extra)
    assert files_of(copy) == before
    assert "without effect, as all 40 steps are done: optimizer.lr = 0.5, not 0.01" in done.stderr
    assert "Raise train.steps to go on with them, or begin a new run" in done.stderr
    assert len(done.stderr) < 5_000, "long values are cut"
    assert not list_differences(run, copy)
    train(copy, "train.steps=50", "optimizer.lr=0.5", "eval.sets=[{name='x', glob='/gone.txt'}]", status=2)
    assert files_of(copy) == before, "a refused resume records nothing"


def test_keys_changed_in_the_middle_hold_from_a_step_on(train, trainer, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    train(run, "train.steps=3")
    (run / "checkpoints").symlink_to((run / "checkpoints").rename(tmp_path / "disk"))
    train(run, "train.steps=6", "optimizer.lr=0.02", 'eval.prompts=["a"]')
    train(run, "train.steps=6", "optimizer.lr=0.09")  # it is finished
    train(run, "train.steps=9", "optimizer.lr=0.01", 'eval.prompts=["a"]')
    assert_rates_are_those_of_the_record(run)
    train(other, "train.steps=9")
    rates = [{"from_step": 1, "value": 0.01}, {"from_step": 4, "value": 0.02}, {"from_step": 7, "value": 0.01}]
    found = list_differences(other, run)
    assert found["optimizer.lr"] == [0.01, rates]
    assert set(found) == {"optimizer.lr", "train.steps", "eval.prompts"}
    shown = trainer.run("compare", other, run)
    assert "from step 1: 0.01; from step 4: 0.02; from step 7: 0.01" in shown.stdout
    assert 'from step 1: null; from step 4: ["a"]' in shown.stdout
    assert "tokens per s" in (alone := trainer.run("compare", run).stdout)
    assert "differ" not in alone
    plotted = trainer.run("plot", run)
    assert "from step 4: train.steps = 6, not 3, optimizer.lr = 0.02, not 0.01" in plotted.stdout


def test_a_change_for_steps_that_are_taken_again_does_not_count(train, tmp_path):
    run = tmp_path / "run"
    train(run, "train.steps=6", "checkpoint.keep_last=9")
    train(run, "train.steps=12", "optimizer.lr=0.02", "checkpoint.keep_last=9")
    # As if it had been killed before its checkpoints after step 6.
    for step in (8, 9, 12):
        shutil.rmtree(run / f"checkpoints/step-{step:08d}", ignore_errors=True)
    train(run, "train.steps=12", "checkpoint.keep_last=9")
    assert list(read_run(run).list_values()["train.steps"]) == [
        {"from_step": 1, "value": 6},
        {"from_step": 7, "value": 12},
    ]
    assert read_run(run).list_values()["optimizer.lr"] == 0.01
    assert_rates_are_those_of_the_record(run)


def test_a_run_that_began_from_another_one_has_its_changes_too(train, tmp_path):
    run, fork = tmp_path / "run", tmp_path / "fork"
    train(run, "train.steps=3")
    train(run, "train.steps=6", "optimizer.lr=0.02")
    train(run, "train.steps=9", "optimizer.lr=0.03", "checkpoint.keep_last=9")
    start = run / "checkpoints/step-00000006"
    start.symlink_to(start.rename(tmp_path / "disk"))
    (tmp_path / "best").symlink_to(run / "checkpoints/step-00000009")
    assert [load_model(place, print).step for place in (start, tmp_path / "best")] == [6, 9]
    train(fork, "train.steps=8", "optimizer.lr=0.04", more=("--from", start))
    lr = [{"from_step": 1, "value": 0.01}, {"from_step": 4, "value": 0.02}, {"from_step": 7, "value": 0.04}]
    assert read_run(fork).list_values()["optimizer.lr"] == lr
    assert read_run(fork).describe_oddities()[0].startswith(f"began from {start}; its steps, tokens, time and dollars")
    assert_rates_are_those_of_the_record(fork)
