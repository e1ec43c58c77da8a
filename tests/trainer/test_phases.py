"""Phases: the ledger's arithmetic, off-ramps, milestones; and the checks of the loss that stop a run."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from shards.errors import RunError
from trainer.ledger import summarise_phases
from trainer.metrics import read_metrics
from trainer.recipe import PhaseConfig
from trainer.session import Session
from trainer.train.train_model import run_training


def make_records() -> list[dict[str, Any]]:
    """A run of 40 steps at a dollar a step and 1,000 tokens each; its loss falls from 8 to 4."""
    records: list[dict[str, Any]] = []
    for step in range(1, 41):
        records.append({"step": step, "loss": 8 - step / 10, "tokens": step * 1_000, "usd": float(step)})
        if step % 10 == 0:
            records.append({"step": step, "val_loss": 8.5 - step / 10})
    return records


def make_phase(until_step: int, **more: Any) -> PhaseConfig:
    return PhaseConfig(name=f"to {until_step}", until_step=until_step, **more)


def test_the_ledger_says_what_each_phase_brought_for_its_money():
    phases = [make_phase(10, goal="val_loss < 7.6"), make_phase(30, goal="val_loss < 5.5", budget_usd=19.5)]
    first, second, third = summarise_phases([*phases, make_phase(60, goal="loss < 1")], make_records())
    assert (first["steps"], first["tokens"], first["usd"]) == (10, 10_000, 10.0)
    assert first["loss_drop"] == pytest.approx(7.9 - 7.5)  # from the first step's loss to validation
    assert first["usd_per_loss"] == pytest.approx(10 / 0.4)
    assert (first["goal_met"], first["over_budget"]) == (True, False)
    assert second["loss_drop"] == pytest.approx(2.0)  # from validation to validation
    assert (second["steps"], second["usd"], second["goal_met"], second["over_budget"]) == (20, 20.0, False, True)
    assert (third["steps"], third["goal_met"]) == (10, None)  # it has not ended


def test_a_missed_goal_stops_the_run_until_it_is_told_to_go_on(train, tmp_path):
    phases = "phases=[{name='easy', until_step=5, goal='val_loss < 9', milestones=[2]}, "
    phases += "{name='hard', until_step=10, goal='val_loss < 0.01'}]"
    changes = (phases, "eval.prompts=['the mill', 'def']", "checkpoint.keep_last=1")
    done = train(tmp_path, *changes, more=("--json",), status=3)
    result = json.loads(done.stdout)
    assert (result["status"], result["steps"]) == ("stopped", 10)
    assert "phase 'hard' ended at step 10" in result["off_ramp"]
    assert [(row["phase"], row["goal_met"]) for row in result["phases"]] == [("easy", True), ("hard", False)]
    assert "phase 'easy': steps 5  tokens 1,280  loss " in done.stderr
    assert "goal val_loss < 9  goal_met yes" in done.stderr
    train(tmp_path, *changes, status=3)  # asked again, it stops again
    samples = (tmp_path / "samples/step-00000005.txt").read_text()
    assert samples.startswith("the mill")
    assert "\n\ndef" in samples
    done = train(tmp_path, *changes, more=("--go-on", "--json"))
    assert json.loads(done.stdout)["steps"] == 24
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept >= {f"step-{step:08d}" for step in (2, 5, 10, 24)}
    assert len(kept) <= 5  # milestones, the last, and the best if it is another
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines if "phase" in line] == [5, 10]


def test_a_spent_budget_stops_the_run_in_the_middle_of_a_phase(train, tmp_path):
    price = "cost.gpu_usd_per_hour=36_000_000"  # $10,000 a second
    done = train(tmp_path, "phases=[{name='dear', until_step=24, budget_usd=1.0}]", price, status=3)
    assert "its budget is $1.00" in done.stderr
    last = read_metrics(tmp_path)[-1]
    assert last["step"] < 24
    assert last["usd"] == pytest.approx(last["seconds"] * 10_000, abs=20)
    assert (tmp_path / f"checkpoints/step-{last['step']:08d}").is_dir()


def test_money_spent_on_steps_that_a_crash_lost_is_counted(train, tmp_path):
    train(tmp_path, "train.steps=6")
    lost = {"step": 9, "loss": 4.0, "seconds": 5_000.0, "usd": 1.0}
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(lost) + "\n")
    assert "removed 1 line after" in train(tmp_path).stderr
    resumed = [line for line in read_metrics(tmp_path) if "loss" in line and line["step"] > 6]
    assert min(line["seconds"] for line in resumed) > 5_000
    assert {line["usd"] for line in resumed} == {1.0}  # the recipe has no price now


def test_the_best_validation_is_kept_though_no_checkpoint_was_due(train, tmp_path):
    rare = ("eval.every_steps=5", "checkpoint.every_steps=100", "checkpoint.keep_last=1")
    train(tmp_path, *rare, "train.steps=10")
    train(tmp_path, *rare, "optimizer.lr=0.5", more=("--go-on",))  # and from here it gets worse
    lines = read_metrics(tmp_path)
    losses = {line["step"]: line["val_loss"] for line in lines if "val_loss" in line}
    assert list(losses) == [5, 10, 15, 20, 24]
    best = min(losses, key=losses.__getitem__)
    assert best < 24
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {f"step-{best:08d}", "step-00000024"}


def spoil_losses(session: Session, *, of_step: int, add: float) -> None:
    """Make one step's loss, and no other's, larger."""
    forward = session.forward
    session.forward = lambda *a, **k: forward(*a, **k) + (add if session.step == of_step - 1 else 0.0)  # type: ignore[assignment]


def test_a_spike_stops_the_run_at_a_good_checkpoint_and_names_the_documents(open_run):
    session = open_run("train.log_every=4", "checkpoint.every_steps=12", "eval.every_steps=24")
    spoil_losses(session, of_step=22, add=4.0)
    with pytest.raises(RunError, match=r"step 22: loss .* a spike over .*windows \[168, 176\)") as caught:
        run_training(session, lambda line: None)
    assert "train-0000" in str(caught.value)
    assert "step-00000012; the same command continues" in str(caught.value)
    assert [path.name for path in (session.run / "checkpoints").iterdir()] == ["step-00000012"]
    session.close()
    again = open_run("eval.every_steps=24")
    spoil_losses(again, of_step=22, add=4.0)
    assert run_training(again, lambda line: None, go_on=True).session.step == 24


def test_the_smoke_test_wants_the_loss_of_guessing_at_first_and_that_it_falls(open_run):
    session = open_run()
    spoil_losses(session, of_step=1, add=1.5)
    with pytest.raises(RunError, match=rf"smoke test: loss .* expected about ln\(320\) = {math.log(320):.3f}"):
        run_training(session, lambda line: None)
    easy = ("train.seed=3", "optimizer.lr=1e-12", "train.smoke_steps=12")  # its first batch is an easy one
    with pytest.raises(RunError, match="smoke test: the loss did not fall"):
        run_training(open_run(*easy, name="easy"), lambda line: None)
