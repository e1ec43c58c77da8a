"""An attempt: one run of a task, in a folder that no other attempt has, and its publication.

A task may run twice, on two hosts at the same time: a node that was given up may still be at work. So an attempt has a
unique name, writes where no other one writes, and deletes nothing of another one. Its files are synced and its receipt
is written before they get the task's name: a task's folder is whole or has no receipt. The first attempt that finishes
wins. A later one compares its files with those: if they are equal it drops its own, else it raises.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from pipeline.engine.receipts import RECEIPT_FILE, load_receipt, write_receipt
from shards.errors import RunError
from shards.stores.files import TMP_SUFFIX, is_abandoned, sync_folder, unique_name
from shards.stores.store import WritableStore, require_folder


class TaskDiffersError(RunError):
    """Two attempts at one task gave different files."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a task."""

    name: str
    """The name that no other attempt has."""
    digest: str
    """The task's digest."""
    label: str
    """The task's name for a person."""
    folder: Path
    """The folder on this machine that the task writes to."""
    stage: WritableStore
    outputs: WritableStore | None


@contextlib.contextmanager
def open_attempt(stage: WritableStore, outputs: WritableStore | None, digest: str, *, label: str) -> Generator[Attempt]:
    """Make an attempt's folder, on the disk where the task's files will lie; delete it at the end if it is there."""
    name = unique_name()
    folder = require_folder(outputs or stage) / f".{digest}.{name}{TMP_SUFFIX}"
    folder.mkdir(parents=True)
    try:
        yield Attempt(name, digest, label, folder, stage, outputs)
    finally:
        for path in (folder, _receipt_folder(stage, name)):
            shutil.rmtree(path, ignore_errors=True)


def publish(attempt: Attempt, result: dict[str, Any]) -> None:
    """Give an attempt's files their place, the receipt last. `result` gets what the receipt says of the files.

    Raises:
        TaskDiffersError: another attempt has finished with other files.
    """
    if (earlier := load_receipt(attempt.stage.child(attempt.digest))) is not None:
        check_equal(attempt.label, earlier, result | {"attempt": attempt.name})
        return
    result["attempt"] = attempt.name
    _sync(attempt.folder)
    if attempt.outputs is None:
        folder = outputs = attempt.folder
    else:
        folder, outputs = _receipt_folder(attempt.stage, attempt.name), require_folder(attempt.outputs)
        folder.mkdir(parents=True)
        for name in result["files"]:
            (attempt.folder / name).replace(outputs / name)
        sync_folder(outputs)
    write_receipt(folder, result, outputs)
    _sync(folder)
    _name_folder(attempt, folder, result)


def _name_folder(attempt: Attempt, folder: Path, result: dict[str, Any]) -> None:
    """Rename a folder to the task's digest, unless another attempt has been faster."""
    stage = require_folder(attempt.stage)
    final, old = stage / attempt.digest, stage / f".old.{attempt.name}{TMP_SUFFIX}"
    while True:
        try:
            folder.rename(final)
        except OSError:
            if not final.exists():
                raise
        else:
            break
        earlier = load_receipt(attempt.stage.child(attempt.digest))
        if earlier is not None:
            check_equal(attempt.label, earlier, result)
            return
        # A folder without a receipt is of a task that must run again: move it out of the way.
        shutil.rmtree(old, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            final.rename(old)
            if (old / RECEIPT_FILE).exists():  # another attempt has put its own there in between
                with contextlib.suppress(OSError):
                    old.rename(final)
    sync_folder(stage)
    shutil.rmtree(old, ignore_errors=True)


def check_equal(task: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Check that two attempts at one task gave the same files.

    Raises:
        TaskDiffersError: they did not.
    """
    before, after = contents(first), contents(second)
    different = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    if different:
        attempts = f"{first.get('attempt', 'an earlier one')} and {second['attempt']}"
        shown = "; ".join(f"{name}: {_show(before.get(name))} and {_show(after.get(name))}" for name in different[:3])
        raise TaskDiffersError(
            f"{task} ran twice and gave different files. Attempts: {attempts}. {shown}. The source has changed while "
            "it was read, or the memory of a host is failing. What the first attempt wrote is kept."
        )


def contents(result: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """Return the size and the checksum of each file of a result, by which results are compared."""
    return {name: (facts["bytes"], _checksum(facts)) for name, facts in result["files"].items()}


def _checksum(facts: dict[str, Any]) -> str:
    if "checksums" in facts:  # no receipt has been written yet
        return xxhash.xxh3_128_hexdigest(facts["checksums"])
    return facts.get("xxh3_128") or facts["sha256"]


def _show(content: tuple[int, str] | None) -> str:
    return "absent" if content is None else f"{content[0]:,} bytes with checksum {content[1][:16]}"


def delete_abandoned(folder: Path) -> None:
    """Delete what attempts of this host left whose process has ended. Those of other hosts may be at work."""
    for path in folder.glob(f".*{TMP_SUFFIX}"):
        if any(map(is_abandoned, path.name.split("."))):
            delete_path(path)


def delete_path(path: Path) -> None:
    """Delete a file or a folder; do nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _receipt_folder(stage: WritableStore, name: str) -> Path:
    """Return where an attempt whose files go elsewhere writes its receipt."""
    return require_folder(stage) / f".receipt.{name}{TMP_SUFFIX}"


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)
