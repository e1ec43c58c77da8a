"""Phases: the ledger's arithmetic, off-ramps, milestones; and the checks of the loss that stop a run."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from shards.errors import RunError
from shards.terminal.reporter import no_note
from trainer.ledger import draw_up_bill, summarise_phases
from trainer.metrics import read_metrics
from trainer.recipe import PhaseConfig, load_train_recipe
from trainer.results.runs import read_run
from trainer.run_folder import read_run_record, read_samples
from trainer.session import Session
from trainer.train.train_model import run_training


def make_records() -> list[dict[str, Any]]:
    """A run of 40 steps at a dollar a step and 1,000 tokens each; its loss falls from 8 to 4."""
    records: list[dict[str, Any]] = []
    for step in range(1, 41):
        amounts = {"tokens": step * 1_000, "usd": float(step), "seconds": 3600.0 * step}
        records.append({"step": step, "loss": 8 - step / 10, **amounts})
        if step % 10 == 0:
            records.append({"step": step, "val_loss": 8.5 - step / 10, "usd": float(step)})
    return records


def make_phase(until_step: int, **more: Any) -> PhaseConfig:
    return PhaseConfig(name=f"to {until_step}", until_step=until_step, **more)


def test_the_ledger_says_what_each_phase_brought_for_its_money():
    phases = [make_phase(10, goal="val_loss < 7.6"), make_phase(30, goal="val_loss < 5.5", budget_usd=19.5)]
    first, second, third = summarise_phases([*phases, make_phase(60, goal="loss < 1")], make_records())
    reached = {"steps": 10, "tokens": 10_000, "usd": 10.0, "hours": 10.0, "goal_met": True, "over_budget": False}
    assert first.items() >= reached.items()
    assert first["loss_drop"] == pytest.approx(7.9 - 7.5)  # from the first step's loss to validation
    assert first["usd_per_loss"] == first["marginal_usd_per_loss"] == pytest.approx(10 / 0.4)
    assert second["loss_drop"] == pytest.approx(2.0)  # from validation to validation
    assert second.items() >= {"steps": 20, "usd": 20.0, "goal_met": False, "over_budget": True}.items()
    assert third.items() >= {"steps": 10, "goal_met": None}.items()  # it has not ended


@pytest.mark.parametrize(
    ("goal", "last_loss", "met"),
    [
        ("usd_per_loss < 10.1", 5.5, True),  # 20 dollars for 2.0
        ("usd_per_loss < 9.9", 5.5, False),
        ("marginal_usd_per_loss < 10.1", 5.5, True),  # 10 dollars for 1.0
        ("marginal_usd_per_loss < 9.9", 5.5, False),
        ("marginal_usd_per_loss < 100", 6.5, False),  # between the last two validations nothing fell
        ("usd_per_loss < 100", 6.5, True),
        ("usd_per_loss < 100", 7.5, False),
        ("marginal_usd_per_loss > 0", 7.5, False),
    ],
)
def test_a_goal_in_dollars_is_missed_where_the_loss_does_not_fall(goal: str, last_loss: float, met: bool):
    records = [
        record | {"val_loss": last_loss} if "val_loss" in record and record["step"] == 30 else record
        for record in make_records()
    ]
    row = summarise_phases([make_phase(10), make_phase(30, goal=goal)], records)[1]
    assert row["goal_met"] is met
    assert (row["goal_value"] is None) == (row[goal.split()[0]] is None)


GPUBURNOUT = [
    # Steps, hours and loss of the published run at $1.45 an hour, and dollars for 1.0 of loss as published.
    (200, 0.3, 6.41, None),
    (10_000, 15.15, 2.907, 6.27),
    (60_000, 65.65, 2.573, 285),
    (90_000, 29.97, 2.494, 550),
]


def test_the_bill_of_gpuburnout_is_the_published_one():
    recipe = load_train_recipe(Path("gpuburnout-1b"), ["cost.other_usd={upload = 8, storage = 3}"])
    records, hours = [{"step": 1, "loss": 10.63, "usd": 0.0, "seconds": 0.0, "tokens": 131_072}], 0.0
    for step, took, loss, _ in GPUBURNOUT:
        hours += took
        amounts = {"usd": 1.45 * hours, "seconds": 3600 * hours, "tokens": 131_072 * step}
        records += [{"step": step, "loss": loss, **amounts}, {"step": step, "val_loss": loss, **amounts}]
    bill = draw_up_bill(recipe, records, 1_038_944_256)
    assert [row["item"] for row in bill] == [*(phase.name for phase in recipe.phases), "upload", "storage", "total"]
    for row, (_, took, _, published) in zip(bill, GPUBURNOUT, strict=False):
        assert row["hours"] == pytest.approx(took)
        assert published is None or row["usd_per_loss"] == pytest.approx(published, rel=0.01)
    assert bill[3]["tokens_per_parameter"] == pytest.approx(11.35, abs=0.01)
    assert bill[-1]["usd"] == pytest.approx(sum(row["usd"] for row in bill[:-1])) == pytest.approx(172, abs=1)
    assert (bill[-1]["steps"], bill[-1]["tokens"]) == (90_000, 90_000 * 131_072)
    longer = draw_up_bill(recipe, [*records, records[-2] | {"step": 90_100, "usd": 300.0}], 0)
    assert longer[4]["item"] == "after the phases"
    assert longer[-1]["usd"] == 311


def test_each_gate_stops_the_run_until_its_phase_is_passed(train, tmp_path):
    phases = "phases=[{name='easy', until_step=5, goal='val_loss < 9', milestones=[2], pause=true}, "
    phases += "{name='hard one', until_step=10, goal='val_loss < 0.01'}, {name='rest', until_step=24, pause=true}]"
    changes = (phases, "eval.prompts=['the mill', 'def']", "checkpoint.keep_last=1", "eval.samples.max_new_tokens=9")

    def go_on(*words: str, status: int = 3) -> tuple[str, dict[str, Any]]:
        done = train(tmp_path, *changes, more=(*words, "--json"), status=status)
        return done.stderr, done.json

    told, result = go_on()
    assert (result["status"], result["steps"], result["waits_at"]) == ("stopped", 5, "easy")
    assert result["off_ramp"] == "phase 'easy' ended at step 5 and pauses the run"
    assert "phase 'easy': steps 5  tokens 1,280  hours " in told
    assert "goal val_loss < 9  goal_value " in told
    assert go_on()[1]["waits_at"] == "easy"  # asked again, it stops again
    for phase, reason in {"rest": "has not stopped the run, which is at step 5", "hrd one": "Did you mean"}.items():
        assert reason in go_on("--go-on", phase, status=2)[1]["problems"][0]
    told, result = go_on("--go-on", "easy")
    assert "passed by --go-on: phase 'easy' ended at step 5 and pauses the run" in told
    assert (result["steps"], result["waits_at"]) == (10, "hard one")  # the next gate holds
    assert [(row["phase"], row["goal_met"]) for row in result["phases"]] == [("easy", True), ("hard one", False)]
    told, result = go_on("--go-on", "easy")
    assert "--go-on passes nothing: phase 'easy' is passed already" in told
    done = train(tmp_path, *changes, status=3)
    assert "the mill" in done.stdout
    *_, last = done.stdout.splitlines()
    assert last.startswith("stopped: phase 'hard one' ended at step 10 with val_loss ")
    assert last.endswith("To go on, add --go-on 'hard one' to the command.")
    assert go_on("--go-on", status=0)[1]["steps"] == 24  # after the last step nothing pauses
    assert "--go-on passes nothing: no phase has stopped the run here" in go_on("--go-on", status=0)[0]
    assert read_run_record(tmp_path).passed == [("easy", "pause"), ("hard one", "goal")]

    assert list(read_samples(tmp_path)) == [2, 5, 10, 24]
    assert [sample["prompt"] for sample in read_samples(tmp_path)[2]] == ["the mill", "def"]
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept >= {f"step-{step:08d}" for step in (2, 5, 10, 24)}
    assert len(kept) <= 5  # milestones, the last, and the best if it is another
    assert [line["step"] for line in read_metrics(tmp_path) if "phase" in line] == [5, 10, 24]


def test_a_spent_budget_stops_the_run_in_the_middle_of_a_phase(train, tmp_path):
    changes = (
        "phases=[{name='dear', until_step=23, budget_usd=1.0}, {name='end', until_step=24, budget_usd=0.01}]",
        "cost.gpu_usd_per_hour=36_000_000",  # $10,000 a second
    )
    assert "its budget is $1.00" in train(tmp_path, *changes, status=3).stdout
    last = read_metrics(tmp_path)[-1]
    assert last["step"] < 23
    assert last["usd"] == pytest.approx(last["seconds"] * 10_000, abs=20)
    assert (tmp_path / f"checkpoints/step-{last['step']:08d}").is_dir()
    assert "phase 'end' has cost" in train(tmp_path, *changes, more=("--go-on", "dear"), status=3).stdout
    assert read_run_record(tmp_path).passed == [("dear", "budget")]


def test_the_same_command_passes_no_second_gate_and_a_changed_phase_is_not_passed(train, tmp_path):
    phase = "{name='dear one', until_step=%d, budget_usd=1.0, goal='val_loss < 0.1', pause=true}"
    changes = (f"phases=[{phase % 12}]", "cost.gpu_usd_per_hour=36_000_000", "checkpoint.every_steps=2")
    assert "its budget is $1.00" in train(tmp_path, *changes, status=3).stdout
    go_on = ("--go-on", "dear one")
    done = train(tmp_path, *changes, more=go_on, status=3)
    assert "ended at step 12 with val_loss" in done.stdout
    assert done.stdout.endswith("To go on, add --go-on to the command.\n")
    done = train(tmp_path, *changes, more=go_on, status=3)  # as a loop of restarts would
    assert "passed already; without a name it passes what stops now" in done.stderr
    assert "passed by --go-on: phase 'dear one' ended" in train(tmp_path, *changes, more=["--go-on"]).stderr
    changed = (f"phases=[{phase % 18}]", *changes[1:], "train.steps=20")
    for asked, status, said in (
        (changes, 0, "passed earlier by --go-on: phase 'dear"),
        (changed, 3, "budget is $1.00"),
    ):
        for step in range(14, 26, 2):
            shutil.rmtree(tmp_path / f"checkpoints/step-{step:08d}", ignore_errors=True)
        done = train(tmp_path, *asked, status=status)
        assert said in done.stderr + done.stdout


def test_a_rehearsal_does_everything_and_is_never_the_real_run(train, tmp_path):
    phases = "phases=[{name='a', until_step=3, goal='val_loss < 0.1'}, "
    phases += "{name='b', until_step=20, pause=true, milestones=[7]}]"
    changes = (phases, "eval.prompts=['a']", "train.steps=90000", "schedule.warmup_steps=2000")
    done = train(tmp_path, *changes, more=("--rehearse",), status=3)
    assert "a rehearsal goes on: phase 'a' ended at step 12 with val_loss" in done.stderr
    assert "rehearsal of tiny: stopped after 36 steps" in done.stdout
    train(tmp_path, *changes, more=("--rehearse", "--go-on", "b"))
    run = read_run(tmp_path)
    assert [line["step"] for line in run.records if "val_loss" in line] == list(range(6, 49, 6))
    assert list(read_samples(tmp_path)) == [12, 24, 36]
    assert (run.recipe.name, run.recipe.train.steps, run.recipe.schedule.warmup_steps) == ("rehearsal of tiny", 48, 1)
    assert "train.rehearsal = true; the recipe has false" in train(tmp_path, *changes, status=2).stderr


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
    train(tmp_path, *rare, "optimizer.lr=0.5", "train.spike_nats=99")  # and from here it gets worse
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
        run_training(session, no_note)
    assert "train-0000" in str(caught.value)
    assert "step-00000012; the same command continues" in str(caught.value)
    assert [path.name for path in (session.run / "checkpoints").iterdir()] == ["step-00000012"]
    session.close()
    again = open_run("eval.every_steps=24", "train.spike_nats=5")
    spoil_losses(again, of_step=22, add=4.0)
    assert run_training(again, no_note).session.step == 24


def test_the_smoke_test_wants_the_loss_of_guessing_at_first_and_that_it_falls(open_run):
    session = open_run()
    spoil_losses(session, of_step=1, add=1.5)
    with pytest.raises(RunError, match=rf"smoke test: loss .* expected about ln\(320\) = {math.log(320):.3f}"):
        run_training(session, no_note)
    easy = ("train.seed=3", "optimizer.lr=1e-12", "train.smoke_steps=12")  # its first batch is an easy one
    with pytest.raises(RunError, match="smoke test: the loss did not fall"):
        run_training(open_run(*easy, name="easy"), no_note)
