"""A disk that changes bytes."""

import os
import random
from pathlib import Path


def flip(path: Path, place: int | None, seed: int = 0) -> None:
    """Change one bit of a file, of the byte at a place or of any, and keep its time, as a disk that fails does."""
    before, generator = path.stat(), random.Random(seed)
    data = bytearray(path.read_bytes())
    data[generator.randrange(len(data)) if place is None else place] ^= 1 << generator.randrange(8)
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
