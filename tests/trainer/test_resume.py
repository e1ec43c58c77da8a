"""Through the real command: a run that was interrupted equals one that was not, and what does not fit is refused."""

import errno
import itertools
import json
import re
import shutil
import signal
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from shards.stores.files import lock_folder
from tests.support.builds import wait_until
from tests.trainer.conftest import read_lines, read_steps
from trainer.checkpoint.folders import list_checkpoints


@pytest.fixture(scope="module")
def whole_run(train, tmp_path_factory) -> Path:
    """A run of 24 steps that never stopped. Read only."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    done = train(run, more=("--json",))
    result = done.json
    assert result["status"] == "complete"
    assert result["steps"] == 24
    cropped = f"{result['tokens_cropped_per_epoch']:,} tokens"
    assert re.search(rf"; each epoch skips {cropped} \([\d.]+%\) at shard ends, different ones each epoch", done.stderr)
    return run


def test_a_run_logs_steps_and_validations_and_keeps_the_last_checkpoints(whole_run):
    lines = read_lines(whole_run)
    steps, validations = ([line for line in lines if key in line] for key in ("loss", "val_loss"))
    assert [line["step"] for line in steps] == list(range(1, 25))
    assert set(steps[0]) == {"step", "tokens", "loss", "lr", "grad_norm"}
    assert steps[-1]["loss"] < steps[0]["loss"] - 1
    assert [line["step"] for line in validations] == [4, 8, 12, 16, 20, 24]
    # 20 was the best so far; 24 is better.
    kept = sorted(path.name for path in (whole_run / "checkpoints").iterdir())
    assert kept == ["step-00000021", "step-00000024"]


@pytest.mark.parametrize("at", [1, 10], ids=["first", "last"])
def test_an_old_checkpoint_that_cannot_be_deleted_is_named_and_the_same_command_deletes_it(
    at, train, whole_run, tmp_path, monkeypatch
):
    deletions, rename = itertools.count(1), Path.rename

    def fail_once(path: Path, target: Path) -> Path:
        if target.name.endswith(".deleted") and next(deletions) == at:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    failed = train(tmp_path, status=1).stderr
    checkpoints = list_checkpoints(tmp_path)
    assert f"Input/output error: '{checkpoints[0]}'" in failed
    assert f"The last checkpoint is {checkpoints[-1]}; the same command continues" in failed
    train(tmp_path)
    mine, theirs = (sorted(path.name for path in (run / "checkpoints").iterdir()) for run in (tmp_path, whole_run))
    assert mine == theirs


@pytest.mark.long
def test_a_run_stopped_by_signals_saves_and_goes_on_bit_for_bit(trainer, shard_set, recipe_file, whole_run, tmp_path):
    arguments = ("train", recipe_file, "--shards", shard_set.path, "--run", tmp_path, "--json")
    stopped_at, metrics = 0, tmp_path / "metrics.jsonl"
    for number in (signal.SIGINT, signal.SIGTERM):
        # Validating at every step gives time to stop it, and changes no training loss.
        process = trainer.start(*arguments, "--set", "eval.every_steps=1")
        line = f'"step": {stopped_at + 1},'
        wait_until(lambda line=line: metrics.exists() and line in metrics.read_text(), "a step to be logged")
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number, errors
        result = json.loads(output)
        assert result["status"] == "interrupted"
        assert stopped_at < result["steps"] < 24
        stopped_at = result["steps"]
        assert Path(result["checkpoint"]).name == f"step-{stopped_at:08d}"
    trainer.run(*arguments, expect=0)
    steps, expected = (read_steps(run) for run in (tmp_path, whole_run))
    assert steps == expected
    assert read_lines(tmp_path)[-1] == read_lines(whole_run)[-1]


def cut_weights(run: Path) -> None:
    weights = run / "checkpoints/step-00000024/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])


def cut_validation(run: Path) -> None:
    *lines, last = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert "val_loss" in last
    (run / "metrics.jsonl").write_text("".join(lines) + last[:20])


@pytest.mark.parametrize(
    ("lose", "said"),
    [
        (cut_weights, ("step-00000024/model.safetensors: corrupt", "resumed from", "step-00000021")),
        (cut_validation, ("removed 1 line after",)),
    ],
)
def test_a_run_that_lost_its_end_ends_the_same(train, whole_run, tmp_path, lose, said):
    """Losses, gradients, validation and final weights are equal bit for bit."""
    run = shutil.copytree(whole_run, tmp_path / "run")
    lose(run)
    done = train(run)
    assert all(text in done.stderr for text in said)
    assert (run / "checkpoints/corrupt-step-00000024").is_dir() == (lose is cut_weights)
    assert read_lines(run) == read_lines(whole_run)
    for name in ("model.safetensors", "optimizer.safetensors"):
        mine, theirs = (load_file(folder / "checkpoints/step-00000024" / name) for folder in (run, whole_run))
        assert mine.keys() == theirs.keys()
        assert all((mine[key] == theirs[key]).all() for key in theirs)


def test_metrics_that_are_gone_are_said(train, whole_run, tmp_path):
    run = shutil.copytree(whole_run, tmp_path / "run")
    cut_weights(run)
    (run / "metrics.jsonl").unlink()
    assert "metrics.jsonl does not go on to step 21" in train(run).stderr


def test_a_second_trainer_in_the_same_run_is_refused(train, tmp_path):
    with lock_folder(tmp_path):
        assert "another process is running here" in train(tmp_path, status=2).stderr
    (tmp_path / "slurm-1.out").touch()
    train(tmp_path, "train.steps=2", "train.smoke_steps=0")
    train(tmp_path / "new", f"eval.prompts=['{'the mill ' * 40}']", status=2)
    assert not (tmp_path / "new").exists()  # a run that is refused leaves no empty folder
