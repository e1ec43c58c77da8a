"""Receipts: the result of a finished task, and the checksums with which later stages read its files.

A task's folder is named by its digest and holds the task's files, their block checksums in `checksums.bin`, and
`receipt.json`: a JSON object with the result and the result's own checksum. `TaskOutput` compares each range of a file
as it is read, so that no bytes are used that a disk has changed. Memory: the range that is read, and the receipt.

The receipt also has each file's version as its store lists it (`ListedFile.version`). A file of that version and size
is trusted until it is read; one of another version (a restored backup, a copied folder) is compared with its checksums.
"""

import hashlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import xxhash

from pipeline.engine.checksums import (
    BLOCK_BYTES,
    CHECKSUM_BYTES,
    WrittenFile,
    checksum_blocks,
    seal,
    seal_checksums,
    unseal,
)
from shards.errors import InputError, RunError, remedy_of
from shards.format.arrays import Rows
from shards.stores.store import ListedFile, Store

RECEIPT_FILE = "receipt.json"
CHECKSUMS_FILE = "checksums.bin"
_PART_BYTES = 1 << 24  # whole blocks


@dataclass(slots=True, kw_only=True)
class Result:
    """The result of a task, as its receipt has it. Each kind of task adds what later stages read."""

    files: dict[str, WrittenFile] = field(default_factory=dict[str, WrittenFile])
    """By name. They are written when the task returns; the engine gives them their place."""
    # The engine adds the rest.
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """By step, as its `Report` has them."""
    core_seconds: dict[str, float] = field(default_factory=dict[str, float])
    retries: int = 0
    """Requests that were tried again."""
    attempt: str = ""
    folder: str = ""
    """The attempt's folder in the task's folder; empty if the files are in the set."""

    def stored_name(self, name: str) -> str:
        """Return the name of a file in the task's folder: it may be in a folder of an attempt."""
        return f"{self.folder}/{name}" if self.folder else name


ResultT = TypeVar("ResultT", bound=Result)


class WorkFileDamagedError(RunError):
    """A file of the work folder is not as its task wrote it. The build catches it and runs that task again."""

    def __init__(self, place: str, where: str, reason: str):
        """Describe the damage of a file.

        Args:
            place: the address of the folder of the task that wrote the file; its last part is the task's digest.
            where: the file's address, which may be elsewhere.
            reason: what is wrong.
        """
        super().__init__(f"{where}: {reason}. Delete the folder {place} and run the same command again.")
        self.args = (place, where, reason)  # what pickle rebuilds it from
        self.place = place
        self.where = where
        self.name = where.rpartition("/")[2]
        self.reason = reason


@contextmanager
def damage_found(store: Store, name: str) -> Generator[None]:
    """Read a file of a work folder in the body of `with`.

    Raises:
        WorkFileDamagedError: it cannot be read or parsed, for no want of memory or the like.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, InputError) or remedy_of(error):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise WorkFileDamagedError(str(store), f"{store}/{name}", reason) from error


class TaskOutput(Generic[ResultT]):
    """The result and files of a finished task. Reads are checked.

    In memory: the result; and from a store with costly requests, all checksums.
    """

    def __init__(self, store: Store, kind: type[ResultT] = Result, result: ResultT | None = None):
        """Set the task whose receipt and files are read.

        Args:
            store: the store of its folder.
            kind: the class of its result; without it, only the files are of interest.
            result: what its receipt said, if that is known: else it is read.
        """
        self.store = store
        self._kind = kind
        self._result = result

    @property
    def result(self) -> ResultT:
        """The result in the receipt.

        Raises:
            WorkFileDamagedError: the receipt is absent or damaged.
        """
        # Not a `cached_property`, with which threads would wait for each other.
        if self._result is None:
            self._result = load_receipt(self.store, self._kind)
        if self._result is None:
            raise WorkFileDamagedError(str(self.store), f"{self.store}/{RECEIPT_FILE}", "is not there")
        return self._result

    def size(self, name: str) -> int:
        """Return the size of a file as it was written."""
        return self.result.files[name].bytes

    def read(self, name: str, start: int = 0, stop: int | None = None) -> memoryview:
        """Read bytes [start, stop) of a file, to its end by default; they are checked.

        Raises:
            WorkFileDamagedError: these bytes, or their checksums, are not as they were written.
        """
        file = self.result.files[name]
        stop = file.bytes if stop is None else stop
        first, last = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
        at = first * BLOCK_BYTES
        data = self.read_unchecked(name, at, min(last * BLOCK_BYTES, file.bytes))
        own = self._read_checksums(file.checksums_at, first, last)
        if checksum_blocks(data) != own:
            where = f"{self.store}/{self.result.stored_name(name)}"
            raise WorkFileDamagedError(str(self.store), where, "differs from what was written")
        return data[start - at : stop - at]

    def read_rows(self, name: str, dtype: np.dtype[Any], first: int = 0, last: int | None = None) -> Rows:
        """Read rows [first, last) of a file that holds nothing else, to its end by default; they are checked."""
        size = dtype.itemsize
        return np.frombuffer(self.read(name, first * size, None if last is None else last * size), dtype)

    def _read_checksums(self, base: int, first: int, last: int) -> bytes:
        """Read the checksums of a task's file, of blocks [first, last). With costly requests all are read once."""
        start, stop = (base + number * CHECKSUM_BYTES for number in (first, last))
        if not self.store.request_bytes:
            return bytes(self.read_unchecked(CHECKSUMS_FILE, start, stop))
        return self._all_checksums[start:stop]

    @property
    def checksums_bytes(self) -> int:
        """The bytes of all checksums."""
        blocks = sum(-(-file.bytes // BLOCK_BYTES) for file in self.result.files.values())
        return blocks * CHECKSUM_BYTES

    @cached_property
    def _all_checksums(self) -> bytes:
        return bytes(self.read_unchecked(CHECKSUMS_FILE, 0, self.checksums_bytes))

    def read_unchecked(self, name: str, start: int, stop: int) -> memoryview:
        """Read bytes [start, stop) of a file without comparing checksums.

        Raises:
            WorkFileDamagedError: the file does not have them.
        """
        if stop <= start:
            return memoryview(b"")
        stored = self.result.stored_name(name)
        with damage_found(self.store, stored):
            return memoryview(self.store.read_range(stored, start, stop))


def write_receipt(folder: Path, result: Result) -> None:
    """Write a task's receipt and the checksums of its files into the files' folder on this machine."""
    (folder / CHECKSUMS_FILE).write_bytes(seal_checksums(result.files))
    for name, file in result.files.items():
        file.version = str((folder / name).stat().st_mtime_ns)
    (folder / RECEIPT_FILE).write_bytes(seal(result))


def load_receipt(store: Store, kind: type[ResultT] = Result) -> ResultT | None:
    """Return the result in a task's receipt, or None if there is no receipt.

    Args:
        store: the store of the task's folder.
        kind: the class of the result; without it, what every receipt has.

    Raises:
        WorkFileDamagedError: the receipt is not as the task wrote it.
    """
    return read_sealed(store, RECEIPT_FILE, kind)


def read_sealed(store: Store, name: str, kind: Any = Any) -> Any:
    """Return the value of a type in a sealed file of a work folder; None if there is no such file.

    Raises:
        WorkFileDamagedError: it is not as it was written.
    """
    with damage_found(store, name):
        try:
            return unseal(store.read(name), kind)
        except (FileNotFoundError, NotADirectoryError):
            return None


def check_task_files(result: Result, store: Store, outputs: Store | None, listed: Mapping[str, ListedFile]) -> bool:
    """Check the files of a receipt against a listing. Return False if an output is gone: the set was moved or deleted.

    Args:
        result: a task's result.
        store: the task's folder.
        outputs: where the result's files are; the task's folder when None.
        listed: the files of the outputs, or else of the stage, by name.

    Raises:
        WorkFileDamagedError: a file is not as the task wrote it.
    """
    where, place = outputs or store, str(store)
    begin = "" if outputs else f"{place.rpartition('/')[2]}/"
    for name, written in result.files.items():
        stored = name if outputs else result.stored_name(name)
        file, address = listed.get(begin + stored), f"{where}/{stored}"
        if file is None:
            if outputs:
                return False
            raise WorkFileDamagedError(place, address, "is not there")
        if file.bytes != written.bytes:
            raise WorkFileDamagedError(place, address, f"has {file.bytes:,} bytes, expected {written.bytes:,}")
        if file.version != written.version and not _has_content(where, stored, written):
            raise WorkFileDamagedError(place, address, "differs from what was written")
    return True


def _has_content(store: Store, name: str, file: WrittenFile) -> bool:
    """Return whether a file has the content that its receipt says, reading it in parts."""
    size = file.bytes
    parts = (store.read_range(name, at, min(at + _PART_BYTES, size)) for at in range(0, size, _PART_BYTES))
    if file.sha256 is not None:
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        return digest.hexdigest() == file.sha256
    return xxhash.xxh3_128_hexdigest(b"".join(map(checksum_blocks, parts))) == file.xxh3_128
