"""A disk that changes bytes."""

from __future__ import annotations

import os
import random
from pathlib import Path


def flip(path: Path, generator: random.Random, place: int | None = None) -> None:
    """Change one bit of a file, of the byte at a place or of any, and keep its time, as a disk that fails does."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    place = generator.randrange(len(data)) if place is None else place
    data[place] ^= 1 << generator.randrange(8)
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
