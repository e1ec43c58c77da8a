"""The protocol through which readers read a set's files, whether they are in a folder or on the Hub.

A store knows names, bytes and digests, but not manifests or tokens. Names are flat: plain names, no folders.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shards.errors import InputError
from shards.terminal.program import called_as


class NeedsFolderError(InputError):
    """The operation needs the set's files in a folder on this machine."""


class Store(Protocol):
    """Files that are read whole or by ranges. Safe to share between threads and to send to another process.

    Its text (`str`) is the address that `open_store` takes. Every method raises FileNotFoundError if the file does
    not exist, and OSError or InputError if the store cannot be read. It never returns fewer bytes than requested.
    """

    @property
    def folder(self) -> Path | None:
        """The folder on this machine that holds the files; None if there is no such folder."""
        ...

    @property
    def request_bytes(self) -> int:
        """The number of bytes that one request should ask for when a file is read from start to end."""
        ...

    def size(self, name: str) -> int:
        """Return a file's size in bytes."""
        ...

    def read(self, name: str) -> bytes:
        """Return a whole file."""
        ...

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file."""
        ...


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a store."""

    store: Store
    name: str

    def size(self) -> int:
        """Return the file's size in bytes."""
        return self.store.size(self.name)

    def read(self) -> bytes:
        """Return the whole file."""
        return self.store.read(self.name)

    def read_range(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop)."""
        return self.store.read_range(self.name, start, stop)


@dataclass(frozen=True)
class FolderStore:
    """A folder on this machine. Links are followed.

    Files are read, not memory-mapped: if another process shortens a mapped file, the reading process is killed.
    """

    folder: Path
    request_bytes = 0

    def size(self, name: str) -> int:
        """Return a file's size in bytes."""
        return (self.folder / name).stat().st_size

    def read(self, name: str) -> bytes:
        """Return a whole file."""
        return (self.folder / name).read_bytes()

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file.

        Raises:
            OSError: the file does not exist, cannot be read, or ends before `stop`.
        """
        with (self.folder / name).open("rb", buffering=0) as file:
            file.seek(start)
            parts = [file.read(stop - start)]
            missing = stop - start - len(parts[0])
            while missing and parts[-1]:  # one read returns at most 2 GiB
                parts.append(file.read(missing))
                missing -= len(parts[-1])
        if missing:
            raise OSError(f"{self.folder / name}: ends {missing} bytes before byte {stop}. Copy or build it again.")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __str__(self) -> str:
        return str(self.folder)


def local_file(path: Path) -> StoredFile:
    """Return a file on this machine as a file of a store."""
    return StoredFile(FolderStore(path.parent), path.name)


def require_folder(store: Store) -> Path:
    """Return the folder that holds a store's files.

    Raises:
        NeedsFolderError: there is no such folder on this machine; the message says how to get one.
    """
    if store.folder is None:
        message = f"{store}: on the Hub, and this needs files on disk. Pull the set first: "
        raise NeedsFolderError(f"{message}{called_as('shards', 'pull')} {store} --out DIR")
    return store.folder
