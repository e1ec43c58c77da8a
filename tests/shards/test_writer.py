"""Writing: files appear whole or not at all, and equal input gives equal bytes."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from shards.format import writer
from tests.support.shard_sets import write_set


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_disk_leaves_nothing_behind(tmp_path, plan, monkeypatch):
    """Every write of a shard's tokens goes to a full device: the error is clear, no file stays."""
    real = writer.SeekableWriter

    class FullDisk(real):
        def _write_raw(self, data):
            with open("/dev/full", "wb", buffering=0) as full:
                full.write(data)

    monkeypatch.setattr(writer, "SeekableWriter", FullDisk)
    with pytest.raises(OSError) as caught:
        write_set(tmp_path / "set", plan)
    assert caught.value.errno == errno.ENOSPC
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["recipe.json", "tokenizer.json"]


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
