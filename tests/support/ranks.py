"""Training on several ranks of this machine."""

import os
import subprocess
import sys
from pathlib import Path


def run_ranks(*arguments: object, script: Path | None = None, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the trainer, or a script, on two ranks, on the CPU, to the exit status that is expected."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    # Without `--` torchrun takes `--run` for one of its own options.
    command += ["--", str(script)] if script else ["-m", "--", "tokenmill"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=200, check=False
    )
    assert done.returncode == expect, done.stderr
    return done
