"""Writing: files appear whole or not at all."""

import signal
import subprocess
import sys
import time

import pytest

CHILD = """
import itertools, pathlib, sys
from shards.format import writer
folder = pathlib.Path(sys.argv[1])
print("ready", flush=True)
for k in itertools.count():
    with writer.atomic_open(folder / f"file-{k % 5}") as file:
        for _ in range(64):
            file.write(b"x" * 65536)
"""


@pytest.mark.parametrize("delay", [0.02, 0.12])
def test_kill_leaves_no_half_file_under_a_final_name(tmp_path, delay):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child:
        child.stdout.readline()
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
    for path in tmp_path.iterdir():
        whole = path.stat().st_size == 64 * 65536
        assert whole or path.name.endswith(".tmp"), path.name
