"""Metrics in Weights & Biases, where it is wanted; it cannot stop a run."""

import sys
from typing import Any

from tests.support.builds import read_json
from trainer.metrics import read_metrics

PROJECT = 'log.wandb_project="mill"'


class StandIn:
    """In place of the tracker's package: it keeps its calls, by the id of the run. The one that is `broken` fails."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[str, Any]]] = {}
        self.broken = ""

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> StandIn:
            if self.broken == name:
                raise OSError(f"{name} fails")
            if name == "init":
                self.own = self.calls.setdefault(named.get("id", ""), [])
            self.own.append((name, given))
            return self

        return call


def test_trackers_get_every_number_of_the_metrics_and_a_resumed_run_of_wandb_goes_on(train, tmp_path, monkeypatch):
    wandb = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for broken, steps, said in (
        ("log", 6, "Weights & Biases gets no more from step 1 on: log fails"),
        ("init", 9, "log.wandb_project: nothing goes to Weights & Biases, only to metrics.jsonl: init fails"),
        ("finish", 12, "Weights & Biases may lack the last lines: finish fails"),
        ("", 26, ""),
    ):
        wandb.broken = broken
        told = train(tmp_path, f"train.steps={steps}", PROJECT).stderr
        assert said in told
        assert told.count("Weights & Biases") == bool(said)
    assert list(wandb.calls) == [read_json(tmp_path / "wandb/tokenmill.json")["id"]]
    # What was not sent, or may not have been, is sent by the next one.
    sent = [line for name, (line, *_) in (one for one in wandb.own if one[1]) if name == "log"]
    assert [line["step"] for line in sent if "loss" in line] == [*range(1, 13), *range(1, 27)]
    lines = read_metrics(tmp_path)
    steps, validations = ({line["step"]: line for line in lines if key in line} for key in ("loss", "val_loss"))
    assert {line["step"]: line["loss"] for line in sent if "loss" in line} == {
        step: line["loss"] for step, line in steps.items()
    }
    assert sent[-1]["val_loss_by_source/prose"] == validations[26]["val_loss_by_source"]["prose"]


def test_without_the_package_a_run_says_so_once_and_trains(tmp_path, monkeypatch, train):
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = train(tmp_path, "train.steps=3", "train.smoke_steps=0", PROJECT)
    assert done.stderr.count("Weights & Biases") == 1
    assert "pip install" in done.stderr
    assert not (tmp_path / "wandb").exists()
