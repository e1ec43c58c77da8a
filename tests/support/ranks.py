"""Training on several ranks of this machine, and the comparison of its results with another run's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.conftest import read_lines


def run_ranks(*arguments: object, script: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the trainer, or a script, on two ranks, on the CPU."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    # Without `--` torchrun takes `--run` for one of its own options.
    command += ["--", str(script)] if script else ["-m", "--", "tokenmill"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=200, check=False
    )


def assert_near(run: Path, expected: Path) -> None:
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
