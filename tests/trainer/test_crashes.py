"""Killed at random moments, or with a full disk: whole checkpoints are left, nothing else, and the run goes on."""

import os
import random
import re
import resource
import time
from pathlib import Path

import pytest

from tests.support.recipes import overrides
from tests.trainer.conftest import read_lines
from trainer.checkpoint.folders import list_checkpoints, read_checkpoint

pytestmark = pytest.mark.long


EXHAUSTIVE = bool(os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"))
MIN_KILLS, MAX_KILLS = (20, 20) if EXHAUSTIVE else (1, 20)
"""How often the run is killed: at least, and at most until a kill has hit a save. `make test-exhaustive`: 20 times."""


def count_lines(run: Path) -> int:
    """Return the lines of the metrics so far."""
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_a_run_killed_at_random_moments_equals_one_that_never_was(trainer, train, shard_set, recipe_file, disk_path):
    # Every other step is saved, so that about half of the moments are in a save; in memory it is a tenth.
    settings = ("train.steps=120", "checkpoint.every_steps=2", "eval.every_steps=30", "train.log_every=3")
    train(disk_path / "whole", *settings)
    run, moments = disk_path / "run", random.Random(20)
    arguments = ("train", recipe_file, "--shards", shard_set.path, "--run", run, *overrides(*settings))
    kills = half_saves = 0
    while kills < MIN_KILLS or (not half_saves and kills < MAX_KILLS):
        kills += 1
        process = trainer.start(*arguments)
        lines, deadline = count_lines(run), time.monotonic() + 30
        while count_lines(run) <= lines and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.06))
        assert process.poll() is None, "it ended before it was killed: take more steps"
        process.kill()
        process.communicate()
        half_saves += len(list((run / "checkpoints").glob(".step-*")))
        for path in list_checkpoints(run):
            read_checkpoint(path)  # raises if it is not whole
    assert half_saves, "no kill hit a save"
    train(run, *settings)
    assert read_lines(run) == read_lines(disk_path / "whole")
    kept = [{path.name for path in (folder / "checkpoints").iterdir()} for folder in (run, disk_path / "whole")]
    assert {"step-00000118", "step-00000120"} <= kept[0]
    assert not [name for name in kept[0] if not name.startswith("step-")]


def test_a_file_size_limit_met_in_a_save_leaves_the_previous_checkpoint(train, tmp_path):
    train(tmp_path, "train.steps=6")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    weights = (tmp_path / "checkpoints/step-00000006/model.safetensors").stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (weights + 1_000, hard))  # the optimizer's state is twice as large
        done = train(tmp_path, status=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert re.search("step-0000000[89]", done.stderr)  # the best validation so far, or the next checkpoint
    assert [read_checkpoint(path).state.step for path in list_checkpoints(tmp_path)] == [4, 6]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]
    assert "step-00000006" in train(tmp_path).stderr


def test_a_disk_too_small_for_one_checkpoint_is_refused_before_the_first_step(train, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1_500_000})
    monkeypatch.setattr("trainer.checkpoint.tensors.shutil.disk_usage", lambda _: usage)
    done = train(tmp_path, more=("--json",), status=2)
    assert "MB are needed, 1.5 MB are free" in done.json["problems"][0]
    assert not (tmp_path / "metrics.jsonl").exists()
