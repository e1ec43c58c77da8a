"""Where temporary folders of tests lie: in memory where there is room, since a store waits for the disk at each file.

A small build syncs dozens of files and folders: on a busy disk twelve tests of flipped bits take 186 s, in memory 73.
No test depends on it: none cuts the power, and the tests of a full disk mount one of their own.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
MIN_FREE_BYTES = 6 << 30
"""The whole suite keeps less than half of this at any time: pytest removes the folder of a test that passed."""


def find_ram_folder() -> Path | None:
    """Return a folder in memory with room for the tests, or None.

    None where the machine has none, it is full or not writable, or it lets no program start (as Docker's own).
    """
    if not os.path.ismount(SHARED_MEMORY) or not os.access(SHARED_MEMORY, os.W_OK):
        return None
    held = os.statvfs(SHARED_MEMORY)
    free = min(held.f_bavail * held.f_frsize, psutil.virtual_memory().available)
    return None if held.f_flag & os.ST_NOEXEC or free < MIN_FREE_BYTES else SHARED_MEMORY


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for one example of a property, where pytest puts its own: `tmp_path` is one for all examples."""
    return tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
