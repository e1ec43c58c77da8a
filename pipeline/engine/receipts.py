"""Receipts: the result of a finished task, and the checksums with which later stages read its files.

A task's folder is named by its digest and holds the task's files, their block checksums in `checksums.bin`, and
`receipt.json`: a JSON object with the result and the result's own checksum. `TaskOutput` compares each range of a file
as it is read, so that no bytes are used that a disk has changed. Memory: the range that is read, and the receipt.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import xxhash

from pipeline.engine.checksums import (
    BLOCK_BYTES,
    CHECKSUM_BYTES,
    block_range,
    checksum_file,
    find_difference,
    read_range,
)
from shards.errors import RunError
from shards.stores.files import hash_file

RECEIPT_FILE = "receipt.json"
CHECKSUMS_FILE = "checksums.bin"
_RECEIPT = re.compile(rb'\{"xxh3_128": "([0-9a-f]{32})", "result": (.*)\}', re.DOTALL)


class WorkFileDamagedError(RunError):
    """A file of the work folder is not as its task wrote it. The engine catches it and runs that task again."""

    def __init__(self, folder: Path, name: str, reason: str):
        super().__init__(f"{folder / name}: {reason}. Delete the folder {folder} and run the same command again.")
        self.args = (folder, name, reason)  # what pickle rebuilds it from
        self.folder = folder
        """The folder of the task that wrote the file; its name is the task's digest."""
        self.name = name
        self.reason = reason


class ReceiptOutdatedError(WorkFileDamagedError):
    """A receipt of version 0.1.0, which has no checksums."""


class TaskOutput:
    """The result and files of a finished task. Reads are checked; only the receipt is kept in memory."""

    def __init__(self, folder: Path):
        """Set the task's folder; its receipt is read on first use."""
        self.folder = folder

    @cached_property
    def result(self) -> dict[str, Any]:
        """The task's result.

        Raises:
            WorkFileDamagedError: the receipt is absent or damaged.
        """
        result = _load_result(self.folder)
        if result is None:
            raise WorkFileDamagedError(self.folder, RECEIPT_FILE, "is not there")
        return result

    def size(self, name: str) -> int:
        """Return the bytes of a file as they were written."""
        return self.result["files"][name]["bytes"]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> memoryview:
        """Read bytes [start, stop) of a file, to its end by default.

        Raises:
            WorkFileDamagedError: these bytes, or their checksums, are not as they were written.
        """
        facts = self.result["files"][name]
        end: int = facts["bytes"] if stop is None else stop
        first, last = block_range(start, end)
        base = facts["checksums_at"]
        try:
            checksums = read_range(
                self.folder / CHECKSUMS_FILE, base + first * CHECKSUM_BYTES, base + last * CHECKSUM_BYTES
            )
            data = memoryview(
                read_range(self.folder / name, first * BLOCK_BYTES, min(last * BLOCK_BYTES, facts["bytes"]))
            )
        except OSError as error:
            raise WorkFileDamagedError(self.folder, name, error.strerror or str(error)) from error
        if len(checksums) != (last - first) * CHECKSUM_BYTES:
            raise WorkFileDamagedError(self.folder, CHECKSUMS_FILE, "ends too soon")
        offset = find_difference(data, checksums)
        if offset is not None:
            place = first * BLOCK_BYTES + offset
            raise WorkFileDamagedError(self.folder, name, f"bytes from {place:,} on differ from their checksum")
        return data[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]


def write_receipt(folder: Path, result: dict[str, Any], outputs: Path | None = None) -> None:
    """Write a task's receipt, with the time and the digest of each of its files, and their checksums.

    Args:
        folder: the task's folder.
        result: the task's result; the checksums in `files` go to a file of their own.
        outputs: where the files of `result["files"]` are; the task's folder when None.
    """
    checksums = bytearray()
    for name, facts in result["files"].items():
        facts["mtime_ns"] = ((outputs or folder) / name).stat().st_mtime_ns
        if "checksums" in facts:
            own: bytes = facts.pop("checksums")
            facts |= {"xxh3_128": xxhash.xxh3_128_hexdigest(own), "checksums_at": len(checksums)}
            checksums += own
    (folder / CHECKSUMS_FILE).write_bytes(checksums)
    body = json.dumps(result)
    text = f'{{"xxh3_128": "{xxhash.xxh3_128_hexdigest(body.encode())}", "result": {body}}}'
    (folder / RECEIPT_FILE).write_text(text, encoding="utf-8")


def read_receipt(folder: Path, outputs: Path | None = None) -> dict[str, Any] | None:
    """Return the result of a finished task like `check_task`, or None if the task must run (again)."""
    try:
        return check_task(folder, outputs)
    except WorkFileDamagedError:
        return None


def check_task(folder: Path, outputs: Path | None = None) -> dict[str, Any] | None:
    """Return the result of a finished task, or None if there is no receipt.

    Each file must have the size that the receipt states. A file with another modification time (a restored backup, a
    copied folder) is compared with its checksums now; the others are compared when they are read.

    Raises:
        WorkFileDamagedError: the receipt or a file is not as the task wrote it.
    """
    result = _load_result(folder)
    if result is None:
        return None
    for name, facts in result["files"].items():
        path = (outputs or folder) / name
        if outputs and not path.exists():
            return None  # the set has been moved or deleted
        if not path.is_file():
            raise WorkFileDamagedError(folder, str(path.absolute()), "is not there")
        if path.stat().st_size != facts["bytes"]:
            reason = f"has {path.stat().st_size:,} bytes, expected {facts['bytes']:,}"
            raise WorkFileDamagedError(folder, str(path.absolute()), reason)
        if path.stat().st_mtime_ns != facts["mtime_ns"] and not _has_content(path, facts):
            raise WorkFileDamagedError(folder, str(path.absolute()), "differs from what was written")
    return result


def _load_result(folder: Path) -> dict[str, Any] | None:
    try:
        data = (folder / RECEIPT_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WorkFileDamagedError(folder, RECEIPT_FILE, error.strerror or str(error)) from error
    match = _RECEIPT.fullmatch(data)
    if match and xxhash.xxh3_128_hexdigest(match[2]).encode() == match[1]:
        return json.loads(match[2])
    if _is_of_0_1_0(data):
        raise ReceiptOutdatedError(folder, RECEIPT_FILE, "is of version 0.1.0 and has no checksums")
    raise WorkFileDamagedError(folder, RECEIPT_FILE, "differs from what was written")


def _is_of_0_1_0(data: bytes) -> bool:
    """Return whether a receipt is of version 0.1.0, which wrote the result alone."""
    try:
        receipt = json.loads(data)
    except ValueError:
        return False
    return isinstance(receipt, dict) and "files" in receipt


def _has_content(path: Path, facts: dict[str, Any]) -> bool:
    if "sha256" in facts:
        return hash_file(path) == facts["sha256"]
    return xxhash.xxh3_128_hexdigest(checksum_file(path)["checksums"]) == facts["xxh3_128"]
