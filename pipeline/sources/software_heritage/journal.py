"""The journal of a fetch task: each object is written to disk as it arrives, so that a killed build fetches only the
rest.

The journal is an append-only file of records: key, kind, length, checksum, bytes. When it is opened, it is truncated
before the first torn or damaged record. Missing objects are recorded too, and count while the endpoint is the same.
Memory: about 200 bytes per object. A crash of the machine loses the objects of the last `_SYNC_SECONDS`.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import BinaryIO, Self

import xxhash

from pipeline.engine.receipts import RECEIPT_FILE
from shards.stores.files import sync_folder

_HEAD = struct.Struct("<20sBIQ")  # key, kind, length, XXH3-64 of key, kind and bytes
_CONTENT, _MISSING = 0, 1
_SYNC_SECONDS = 2.0


class Journal:
    """The objects fetched for one task, by key. One process uses it at a time."""

    def __init__(self, path: Path, endpoint: str):
        """Open or create the file.

        Args:
            path: the file.
            endpoint: the address of the archive. Objects that are missing at another endpoint are requested again.
        """
        self.path = path
        self._endpoint = endpoint.encode()
        self._places: dict[bytes, tuple[int, int]] = {}
        self._missing: set[bytes] = set()
        # Cut off a torn or damaged tail, so that the next record follows an intact one.
        self._file = path.open("a+b")
        self._end = self._load()
        self._file.truncate(self._end)
        self._file.seek(0, os.SEEK_END)
        sync_folder(path.parent)
        self._synced = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, key: bytes) -> bool:
        return key in self._places or key in self._missing

    def __len__(self) -> int:
        return len(self._places) + len(self._missing)

    def is_missing(self, key: bytes) -> bool:
        """Return whether the archive has answered that it does not have an object."""
        return key in self._missing

    def read(self, key: bytes) -> bytes:
        """Return an object as it was added."""
        place, length = self._places[key]
        return os.pread(self._file.fileno(), length, place)

    def add(self, key: bytes, body: bytes) -> None:
        """Append an object."""
        self._places[key] = (self._end + _HEAD.size, len(body))
        self._append(key, _CONTENT, body)

    def add_missing(self, key: bytes) -> None:
        """Append a record that the archive does not have an object."""
        self._missing.add(key)
        self._append(key, _MISSING, self._endpoint)

    def close(self) -> None:
        """Sync and close the file."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def _append(self, key: bytes, kind: int, body: bytes) -> None:
        self._file.write(_HEAD.pack(key, kind, len(body), _checksum(key, kind, body)) + body)
        # Flushed at once, so that only a crash of the machine loses a record; synced now and then.
        self._file.flush()
        self._end += _HEAD.size + len(body)
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def _load(self) -> int:
        """Read the intact records; return the offset of their end."""
        end = 0
        with self.path.open("rb", buffering=1 << 20) as file:
            while record := _read_record(file):
                key, kind, body = record
                if kind == _CONTENT:
                    self._places[key] = (end + _HEAD.size, len(body))
                elif body == self._endpoint:
                    self._missing.add(key)
                end += _HEAD.size + len(body)
        return end


def _read_record(file: BinaryIO) -> tuple[bytes, int, bytes] | None:
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    key, kind, length, checksum = _HEAD.unpack(head)
    body = file.read(length)
    if checksum != _checksum(key, kind, body):
        return None
    return key, kind, body


def _checksum(key: bytes, kind: int, body: bytes) -> int:
    hashing = xxhash.xxh3_64(key + bytes([kind]))
    hashing.update(body)
    return hashing.intdigest()


def delete_journals(folder: Path) -> None:
    """Delete the journals of tasks that are done."""
    for path in folder.glob("*.journal"):
        if (folder / path.stem / RECEIPT_FILE).exists():
            path.unlink(missing_ok=True)
