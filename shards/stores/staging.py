"""A folder that appears under its name whole, or not at all.

What is written goes to a hidden folder beside it, which is renamed at the end. A killed process leaves that hidden
folder, with a name of its own; the next run takes it away and starts clean, unless another still writes to it. Who can
tell a whole file from half of one may keep what was left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Literal

from shards.writer import sync_folder

STAGING_SUFFIX = ".unfinished"


@contextlib.contextmanager
def stage_folder(path: Path, *, unfinished: Literal["remove", "keep"] = "remove") -> Generator[Path]:
    """Make a folder to write to, which gets its name when the block ends well and is removed when it does not.

    Args:
        path: the name it gets.
        unfinished: "keep": what is there when the block fails, or the process is killed, is found by the next run.

    Raises:
        FileExistsError: the name is taken by a file, or by a folder that holds something.
        BlockingIOError: another process is writing this folder.
        OSError: the disk is full or not writable.
    """
    path = path.absolute()
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise FileExistsError(f"{path}: exists and is not empty. Remove it, or give another folder.")
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}{STAGING_SUFFIX}")
    staging.mkdir(exist_ok=True)
    lock = os.open(staging, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(f"{path}: another process is writing it. Wait for it, or end it.") from error
        if unfinished == "remove":
            _empty(staging)
        try:
            yield staging
            for folder, _, _ in os.walk(staging):
                sync_folder(Path(folder))
            staging.rename(path)
        except BaseException:
            if unfinished == "remove":
                shutil.rmtree(staging, ignore_errors=True)
            raise
        sync_folder(path.parent)
    finally:
        os.close(lock)


def _empty(folder: Path) -> None:
    """Remove what a killed process left; the folder itself stays, since it is locked."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
