"""Receipts: the result of a finished task, and the checksums with which later stages read its files.

A task's folder is named by its digest and holds the task's files, their block checksums in `checksums.bin`, and
`receipt.json`: a JSON object with the result and the result's own checksum. `TaskOutput` compares each range of a file
as it is read, so that no bytes are used that a disk has changed. Memory: the range that is read, and the receipt.

The receipt also has each file's version as its store lists it (`ListedFile.version`). A file of that version and size
is trusted until it is read; one of another version (a restored backup, a copied folder) is compared with its checksums.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import xxhash

from pipeline.engine.checksums import BLOCK_BYTES, CHECKSUM_BYTES, block_range, checksum_blocks, find_difference
from shards.errors import RunError
from shards.stores.store import ListedFile, Store, WritableStore

RECEIPT_FILE = "receipt.json"
CHECKSUMS_FILE = "checksums.bin"
_SEALED = re.compile(rb'\{"xxh3_128": "([0-9a-f]{32})", "result": (.*)\}', re.DOTALL)
_PART_BYTES = 256 * BLOCK_BYTES

FindFile = Callable[[str], ListedFile | None]
"""Returns the file of a name, as its store lists it, or None if there is none."""


class WorkFileDamagedError(RunError):
    """A file of the work folder is not as its task wrote it. The engine catches it and runs that task again."""

    def __init__(self, place: str, name: str, reason: str):
        """Describe the damage.

        Args:
            place: the address of the folder of the task that wrote the file; its last part is the task's digest.
            name: the file's name in that folder, or its whole address where it lies elsewhere.
            reason: what is wrong.
        """
        self.where = name if "/" in name else f"{place}/{name}"
        super().__init__(f"{self.where}: {reason}. Delete the folder {place} and run the same command again.")
        self.args = (place, name, reason)  # what pickle rebuilds it from
        self.place = place
        self.name = name
        self.reason = reason


class ReceiptOutdatedError(WorkFileDamagedError):
    """A receipt of version 0.1.0, which has no checksums."""


class TaskOutput:
    """The result and files of a finished task. Reads are checked; only the receipt is kept in memory."""

    def __init__(self, store: Store):
        """Set the store of the task's folder; its receipt is read on first use."""
        self.store = store

    @cached_property
    def result(self) -> dict[str, Any]:
        """The task's result.

        Raises:
            WorkFileDamagedError: the receipt is absent or damaged.
        """
        result = load_receipt(self.store)
        if result is None:
            raise WorkFileDamagedError(str(self.store), RECEIPT_FILE, "is not there")
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
        base = facts["checksums_at"] + first * CHECKSUM_BYTES
        checksums = self._read_checksums(base, base + (last - first) * CHECKSUM_BYTES)
        data = memoryview(self._read_file(name, first * BLOCK_BYTES, min(last * BLOCK_BYTES, facts["bytes"])))
        offset = find_difference(data, checksums)
        if offset is not None:
            place = first * BLOCK_BYTES + offset
            raise WorkFileDamagedError(str(self.store), name, f"bytes from {place:,} on differ from their checksum")
        return data[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _read_checksums(self, start: int, stop: int) -> bytes:
        """Read checksums. From a store with costly requests all are read once: 8 bytes for each 64 KiB."""
        if not self.store.request_bytes:
            return self._read_file(CHECKSUMS_FILE, start, stop)
        return self._all_checksums[start:stop]

    @cached_property
    def _all_checksums(self) -> bytes:
        end = max(
            facts["checksums_at"] + -(-facts["bytes"] // BLOCK_BYTES) * CHECKSUM_BYTES
            for facts in self.result["files"].values()
        )
        return self._read_file(CHECKSUMS_FILE, 0, end)

    def _read_file(self, name: str, start: int, stop: int) -> bytes:
        try:
            return self.store.read_range(file_name(self.result, name), start, stop) if stop > start else b""
        except OSError as error:
            raise WorkFileDamagedError(str(self.store), name, error.strerror or str(error)) from error


def file_name(result: dict[str, Any], name: str) -> str:
    """Return the name of a task's file in the task's folder: it may lie in the folder of the attempt that wrote it."""
    attempt = result.get("folder")
    return f"{attempt}/{name}" if attempt else name


def write_receipt(folder: Path, result: dict[str, Any]) -> None:
    """Write a task's receipt and the checksums of its files into the folder on this machine where the files are."""
    (folder / CHECKSUMS_FILE).write_bytes(seal_checksums(result))
    for name, facts in result["files"].items():
        facts["version"] = str((folder / name).stat().st_mtime_ns)
    (folder / RECEIPT_FILE).write_bytes(seal(result))


def seal_checksums(result: dict[str, Any]) -> bytes:
    """Take the checksums of a result's files out of it; return them for a file to which the result then refers."""
    checksums = bytearray()
    for facts in result["files"].values():
        if "checksums" in facts:
            own: bytes = facts.pop("checksums")
            facts |= {"xxh3_128": xxhash.xxh3_128_hexdigest(own), "checksums_at": len(checksums)}
            checksums += own
    return bytes(checksums)


def seal(value: Any) -> bytes:
    """Return JSON values with their own checksum, for `unseal`."""
    body = json.dumps(value)
    return f'{{"xxh3_128": "{xxhash.xxh3_128_hexdigest(body.encode())}", "result": {body}}}'.encode()


def unseal(data: bytes) -> Any:
    """Return what `seal` was given.

    Raises:
        ValueError: the bytes are not as they were written.
    """
    match = _SEALED.fullmatch(data)
    if match is None or xxhash.xxh3_128_hexdigest(match[2]).encode() != match[1]:
        raise ValueError("differs from what was written")
    return json.loads(match[2])


def read_receipt(store: WritableStore, outputs: WritableStore | None = None) -> dict[str, Any] | None:
    """Return the result of a finished task like `check_task`, or None if the task must run (again)."""
    try:
        return check_task(store, outputs)
    except WorkFileDamagedError:
        return None


def check_task(store: WritableStore, outputs: WritableStore | None = None) -> dict[str, Any] | None:
    """Return the result of a finished task, or None if there is no receipt.

    Args:
        store: the task's folder.
        outputs: where the files of `result["files"]` are; the task's folder when None.

    Raises:
        WorkFileDamagedError: the receipt or a file is not as the task wrote it.
    """
    result = load_receipt(store)
    if result is None:
        return None
    found = {file.name: file for file in (outputs or store).list()}
    return result if check_files(result, store, outputs, found.get) else None


def load_receipt(store: Store) -> dict[str, Any] | None:
    """Return the result in a task's receipt, or None if there is no receipt.

    Raises:
        WorkFileDamagedError: the receipt is not as the task wrote it.
    """
    try:
        data = store.read(RECEIPT_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WorkFileDamagedError(str(store), RECEIPT_FILE, error.strerror or str(error)) from error
    try:
        return unseal(data)
    except ValueError as error:
        if _is_of_0_1_0(data):
            raise ReceiptOutdatedError(str(store), RECEIPT_FILE, "is of version 0.1.0 and has no checksums") from error
        raise WorkFileDamagedError(str(store), RECEIPT_FILE, str(error)) from error


def check_files(result: dict[str, Any], store: Store, outputs: Store | None, find: FindFile) -> bool:
    """Check the files of a result against a listing. Return False if an output is gone: the set was moved or deleted.

    Args:
        result: a task's result.
        store: the task's folder.
        outputs: where the result's files are; the task's folder when None.
        find: looks a file of `outputs`, or of the task's folder, up in a listing.

    Raises:
        WorkFileDamagedError: a file is not as the task wrote it.
    """
    where = outputs or store
    for name, facts in result["files"].items():
        stored = name if outputs else file_name(result, name)
        file, address = find(stored), f"{where}/{stored}"
        if file is None:
            if outputs:
                return False
            raise WorkFileDamagedError(str(store), address, "is not there")
        if file.bytes != facts["bytes"]:
            reason = f"has {file.bytes:,} bytes, expected {facts['bytes']:,}"
            raise WorkFileDamagedError(str(store), address, reason)
        if file.version != version_of(facts) and not _has_content(where, stored, facts):
            raise WorkFileDamagedError(str(store), address, "differs from what was written")
    return True


def version_of(facts: dict[str, Any]) -> str:
    """Return the version of a file as it was written. Older receipts have a file's time as a number."""
    return facts["version"] if "version" in facts else str(facts["mtime_ns"])


def _is_of_0_1_0(data: bytes) -> bool:
    """Return whether a receipt is of version 0.1.0, which wrote the result alone."""
    try:
        receipt = json.loads(data)
    except ValueError:
        return False
    return isinstance(receipt, dict) and "files" in receipt


def _has_content(store: Store, name: str, facts: dict[str, Any]) -> bool:
    """Return whether a file has the content that was written, reading it in parts."""
    size: int = facts["bytes"]
    parts = (store.read_range(name, at, min(at + _PART_BYTES, size)) for at in range(0, size, _PART_BYTES))
    if "sha256" in facts:
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        return digest.hexdigest() == facts["sha256"]
    return xxhash.xxh3_128_hexdigest(b"".join(map(checksum_blocks, parts))) == facts["xxh3_128"]
