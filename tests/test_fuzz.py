"""Hostile keys, flags, sets, runs, source files and work folders: each command ends in a result or a clear refusal.

`TOKENMILL_FUZZ_CASES` is how many cases are run in all, `TOKENMILL_FUZZ_SEED` draws others. `tests/support/fuzz`
says what a case is, what it may not do, and how to run one again.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fuzz.cases import KINDS

EXHAUSTIVE = bool(os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"))
CASES = int(os.environ.get("TOKENMILL_FUZZ_CASES", "5000" if EXHAUSTIVE else "125"))
SEED = os.environ.get("TOKENMILL_FUZZ_SEED", "1")


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_no_case_ends_in_a_traceback_or_takes_long(tmp_path: Path):
    command = [sys.executable, "-m", "tests.support.fuzz", *KINDS, "--folder", str(tmp_path), "--seed", SEED]
    command += ["--count", str(-(-CASES // len(KINDS)))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
