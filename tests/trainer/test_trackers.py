"""Metrics in TensorBoard and in Weights & Biases, where these are wanted; neither can stop a run."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

from trainer.metrics import read_metrics
from trainer.train.trackers import open_events

PROJECT = 'log.wandb_project="mill"'


def test_events_hold_the_numbers_of_a_line(tmp_path, monkeypatch):
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str):
            Path(folder).mkdir()

        def add_scalar(self, *scalar: Any) -> None:
            written.append(scalar)

        def flush(self) -> None:
            if len(written) > 3:
                raise OSError("full")
            written.append(("flushed", 0, 0))

        def close(self) -> None:
            written.append(("closed", 0, 0))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    said: list[str] = []
    with contextlib.ExitStack() as opened:
        write = open_events(tmp_path, said.append, opened)
        assert write is not None
        write({"step": 3, "loss": 2.5, "val_loss_by_source": {"prose": 1.0}})
        assert written == [("loss", 2.5, 3), ("val_loss_by_source/prose", 1.0, 3), ("flushed", 0, 0)]
        for step in (4, 5):
            write({"step": step, "loss": 2.0})
        assert open_events(tmp_path, said.append, opened) is None  # the folder is there: the writer fails
    assert said[0] == "TensorBoard gets no more from step 4 on: full"
    assert said[1].startswith("nothing goes to TensorBoard, only to metrics.jsonl: [Errno 17]")
    assert written[-1] == ("closed", 0, 0)


class Wandb:
    """A stand-in for the package: it keeps what is sent, by the id of the run. The call that is `broken` fails."""

    def __init__(self) -> None:
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self.broken = ""

    def __getattr__(self, name: str) -> Any:
        def call(line: Any = None, **given: Any) -> Wandb:
            if self.broken == name:
                raise OSError(f"{name} fails")
            if name == "init":
                self.lines = self.sent.setdefault(given["id"], [])
            elif name == "log":
                self.lines.append(line)
            return self

        return call


def test_a_resumed_run_goes_on_in_its_run_of_wandb_with_every_number_of_the_metrics(train, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", wandb := Wandb())
    for wandb.broken, steps, said in (
        ("log", 6, "Weights & Biases gets no more from step 1 on: log fails"),
        ("init", 9, "log.wandb_project: nothing goes to Weights & Biases, only to metrics.jsonl: init fails"),
        ("finish", 12, "Weights & Biases may lack the last lines: finish fails"),
        ("", 24, ""),
        ("", 26, ""),
    ):
        told = train(tmp_path, f"train.steps={steps}", PROJECT).stderr
        assert said in told
        assert told.count("Weights & Biases") == bool(said)
    assert list(wandb.sent) == [json.loads((tmp_path / "wandb/tokenmill.json").read_text())["id"]]
    # What was not sent, or may not have been, is sent by the next one.
    assert [line["step"] for line in wandb.lines if "loss" in line] == [*range(1, 13), *range(1, 27)]
    lines = read_metrics(tmp_path)
    steps, validations = ({line["step"]: line for line in lines if key in line} for key in ("loss", "val_loss"))
    assert {line["step"]: line["loss"] for line in wandb.lines if "loss" in line} == {
        step: line["loss"] for step, line in steps.items()
    }
    assert wandb.lines[-1]["val_loss_by_source/prose"] == validations[26]["val_loss_by_source"]["prose"]


def test_without_the_package_a_run_says_so_once_and_trains(tmp_path, monkeypatch, train):
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = train(tmp_path, "train.steps=3", "train.smoke_steps=0", PROJECT)
    assert done.stderr.count("Weights & Biases") == 1
    assert "pip install" in done.stderr
    assert not (tmp_path / "wandb").exists()
