"""Metrics in TensorBoard and in Weights & Biases, where these are wanted; neither can stop a run.

The tests of Weights & Biases use its own package, offline, and are skipped where it is not installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from trainer.train.trackers import open_events

PROJECT = 'log.wandb_project="mill"'
BLOCK = 32768
"""Bytes of a block of a file of Weights & Biases, in which records are cut into fragments as in LevelDB's log."""
needs_wandb = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs the extra wandb")


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


def read_sent(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the lines that each file of Weights & Biases in a run folder holds, by the run's id, in order of time."""
    from wandb.proto import wandb_internal_pb2

    sent: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(run.glob("wandb/*run-*/*.wandb")):
        content, place, whole = file.read_bytes(), 7, b""
        lines: list[dict[str, Any]] = []
        while place + 7 <= len(content):
            if (left := BLOCK - place % BLOCK) < 7:
                place += left
                continue
            _, length, kind = struct.unpack_from("<IHB", content, place)
            whole += content[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):  # the whole record, or its last fragment
                record = wandb_internal_pb2.Record.FromString(whole)
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                lines += [{key: json.loads(value) for key, value in items.items() if key[0] != "_"}] if items else []
                whole = b""
        sent.setdefault(file.stem.removeprefix("run-"), []).extend(lines)
    return sent


def start(run: Path, shard_set: Any, recipe_file: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tokenmill", "train", recipe_file, "--shards", shard_set.path, "--run", run]
    given = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", **environment}
    own = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen([*map(str, command), "--set", PROJECT, *arguments], env=given, **own)


@needs_wandb
def test_a_resumed_run_goes_on_in_its_run_of_wandb_with_every_number_of_the_metrics(tmp_path, shard_set, recipe_file):
    """Killed after a checkpoint, then resumed: steps that are done again are sent again."""
    run = tmp_path / "run"
    first = start(run, shard_set, recipe_file)
    while not (run / "checkpoints/step-00000006").is_dir():
        assert first.poll() is None, first.communicate()
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    (run_id,) = read_sent(run)
    second = start(run, shard_set, recipe_file)
    _, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    sent = read_sent(run)
    assert list(sent) == [run_id] == [json.loads((run / "wandb/tokenmill.json").read_text())["id"]]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = {line["step"]: line["loss"] for line in sent[run_id] if "loss" in line}
    assert steps == {line["step"]: line["loss"] for line in lines if "loss" in line}
    (last,) = [line for line in lines if line["step"] == 24 and "val_loss" in line]
    assert sent[run_id][-1]["val_loss"] == last["val_loss"]
    assert sent[run_id][-1]["val_loss_by_source/prose"] == last["val_loss_by_source"]["prose"]


@needs_wandb
def test_a_failed_connection_is_said_once_and_stops_nothing(tmp_path, shard_set, recipe_file):
    nobody = {"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:1", "WANDB_API_KEY": "a" * 40}
    run = tmp_path / "run"
    process = start(run, shard_set, recipe_file, WANDB_INIT_TIMEOUT="2", **nobody)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err.count("log.wandb_project: nothing goes to Weights & Biases, only to metrics.jsonl: ") == 1
    # With a connection, a later run of the same folder begins with all that was missed.
    process = start(run, shard_set, recipe_file, "--set", "train.steps=26")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    (sent,) = read_sent(run).values()
    assert [line["step"] for line in sent if "loss" in line] == list(range(1, 27))


def test_without_the_package_a_run_says_so_once_and_trains(tmp_path, monkeypatch, train):
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = train(tmp_path, "train.steps=3", "train.smoke_steps=0", PROJECT)
    assert done.stderr.count("Weights & Biases") == 1
    assert "pip install" in done.stderr
    assert not (tmp_path / "wandb").exists()
