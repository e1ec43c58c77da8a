"""Where temporary folders of tests lie: in memory where there is room, since a store waits for the disk at each file.

A small build syncs dozens of files and folders: on a busy disk twelve tests of flipped bits take 186 s, in memory 73.
No test depends on it: none cuts the power, and the tests of a full disk mount one of their own.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
MIN_FREE_BYTES = 6 << 30
"""The whole suite keeps less than half of this at any time: pytest removes the folder of a test that passed."""


def find_ram_folder(
    folder: Path = SHARED_MEMORY, memory: Path = Path("/proc/meminfo"), mounts: Path = Path("/proc/mounts")
) -> Path | None:
    """Return a folder in memory with room for the tests, or None.

    None where the machine has none, it is full or not writable, or it lets no program start (as Docker's own).
    """
    if not _is_ram(folder, mounts) or not os.access(folder, os.W_OK):
        return None
    held = os.statvfs(folder)
    free = held.f_bavail * held.f_frsize
    if held.f_flag & os.ST_NOEXEC or min(free, _available_bytes(memory)) < MIN_FREE_BYTES:
        return None
    return folder


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for one example of a property, where pytest puts its own: `tmp_path` is one for all examples."""
    return tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))


def _is_ram(folder: Path, mounts: Path) -> bool:
    if not mounts.is_file():
        return False
    return any(line.split()[1:3] == [str(folder), "tmpfs"] for line in mounts.read_text().splitlines())


def _available_bytes(memory: Path) -> int:
    for line in memory.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
