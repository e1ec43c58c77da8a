"""Several ranks on the CPU (gloo): the same samples and losses as one, and checkpoints that either goes on from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from safetensors.torch import load_file

from shards import ShardSet


class Done(Protocol):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class Command(Protocol):
    """The `trainer` fixture."""

    def run(self, *arguments: object) -> Done: ...


ReadLines = Callable[[Path], list[dict[str, Any]]]


def run_ranks(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the trainer on two ranks; without `--` torchrun takes `--run` for one of its own options."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "--",
        "trainer",
    ]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=200, check=False
    )


@pytest.fixture(scope="module")
def one_rank(
    trainer: Command, shard_set: ShardSet, recipe_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run of one rank that never stopped. Read only."""
    run = tmp_path_factory.mktemp("runs") / "one"
    done = trainer.run("train", recipe_file, "--shards", shard_set.path, "--run", run)
    assert done.returncode == 0, done.stderr
    return run


def assert_near(run: Path, expected: Path, read_lines: ReadLines) -> None:
    """Steps, validations and final weights are equal but for rounding."""
    lines, others = ([line for line in read_lines(path) if "phase" not in line] for path in (run, expected))
    assert [(line["step"], line.get("tokens")) for line in lines] == [(o["step"], o.get("tokens")) for o in others]
    for line, other in zip(lines, others, strict=True):
        for key in {"loss", "grad_norm", "val_loss"} & other.keys():
            assert line[key] == pytest.approx(other[key], rel=2e-4)
    mine, theirs = (load_file(path / "checkpoints/step-00000024/model.safetensors") for path in (run, expected))
    assert mine.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(mine[name], weight, rtol=1e-2, atol=2e-3)


def test_one_rank_then_two_then_one_equals_one_rank_throughout(
    trainer: Command, shard_set: ShardSet, recipe_file: Path, one_rank: Path, read_lines: ReadLines, tmp_path: Path
):
    arguments = ("train", recipe_file, "--shards", shard_set.path, "--run", tmp_path)

    # Stopped where goals are missed that cannot be met: the schedule stays that of 24 steps.
    def stop_at(step: int) -> tuple[str, str]:
        return "--set", f"phases=[{{name='a', until_step={step}, goal='loss < 0'}}]"

    first = trainer.run(*arguments, *stop_at(8), "--set", "train.micro_batch=1")
    assert first.returncode == 3, first.stderr
    second = run_ranks(*arguments, *stop_at(16), "--set", "train.micro_batch=2", "--set", "train.log_every=3")
    assert "2 x cpu" in second.stderr
    assert second.stderr.count("resumed from") == 1
    assert second.stderr.count("step 16 with loss") == 1, second.stderr
    third = trainer.run(*arguments, "--set", "train.micro_batch=8")
    assert third.returncode == 0, third.stderr
    assert_near(tmp_path, one_rank, read_lines)


def test_fsdp_gives_the_losses_of_one_rank(
    shard_set: ShardSet, recipe_file: Path, one_rank: Path, read_lines: ReadLines, tmp_path: Path
):
    arguments = ("train", recipe_file, "--shards", shard_set.path, "--run", tmp_path, "--set", "train.parallel=fsdp")
    stopped = run_ranks(*arguments, "--set", "phases=[{name='a', until_step=10, goal='loss < 0'}]")
    assert "step 10 with loss" in stopped.stderr
    done = run_ranks(*arguments)  # also its optimizer's state is saved whole and split again
    assert done.returncode == 0, done.stderr
    lines = [line for line in read_lines(tmp_path) if line["step"] != 10 or "val_loss" not in line]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert_near(tmp_path, one_rank, read_lines)


def test_a_global_batch_that_the_ranks_cannot_share_is_refused(shard_set: ShardSet, recipe_file: Path, tmp_path: Path):
    done = run_ranks(
        "train", recipe_file, "--shards", shard_set.path, "--run", tmp_path, "--set", "train.micro_batch=8"
    )
    assert done.returncode != 0
    assert done.stderr.count("train.global_batch = 8 with train.micro_batch = 8 on 2 ranks") == 1
