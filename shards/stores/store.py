"""The protocols through which files are read and written, wherever they are kept, and the store for a folder.

A store knows names and bytes, but not manifests or tokens. The names in a set are flat: plain names, no folders. The
names in a work folder have folders in them, with `/` between.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from shards.errors import InputError, set_error
from shards.stores.files import atomic_open, check_own_folder, is_within, sync_path

READS_AT_ONCE = 16
"""Small files that are read at the same time from a store with costly requests."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as a store lists it."""

    name: str
    bytes: int
    version: str
    """Changes when the file is written again: an object's ETag, or a file's modification time in nanoseconds."""


class Store(Protocol):
    """Files that are read whole or by ranges. Safe to share between threads and to send to another process.

    Its text (`str`) is the address that `open_store` takes. Every method raises FileNotFoundError if the file does
    not exist, and OSError or InputError if the store cannot be read. It never returns fewer bytes than requested.
    """

    @property
    def folder(self) -> Path | None:
        """The folder on this machine that holds the store's files; None if there is none."""
        ...

    @property
    def request_bytes(self) -> int:
        """The bytes that one request to the store should ask for when a file is read from start to end."""
        ...

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        ...

    def read(self, name: str) -> bytes:
        """Return a whole file."""
        ...

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file."""
        ...

    def list(self) -> Iterator[ListedFile]:
        """Yield every file, folders included recursively, in no order; nothing if it has no folder."""
        ...


class WritableStore(Store, Protocol):
    """A store that can be written to. A file is there whole or not at all.

    Writing raises what reading raises, and InputError if there is no room or no permission.
    """

    def child(self, name: str) -> Self:
        """Return the store of a folder in this one. The folder need not exist."""
        ...

    def find(self, name: str) -> ListedFile | None:
        """Return a file as a listing shows it, or None if there is none."""
        ...

    def put(self, name: str, content: bytes | Path) -> str:
        """Write a whole file, from bytes or a file on this machine; replace the one of that name.

        Returns:
            Its version, as a listing shows it.
        """
        ...

    def create(self, name: str, content: bytes) -> bool:
        """Write a whole file unless one of that name exists. Of many writers, exactly one gets True."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file; do nothing if there is none."""
        ...

    def delete_all(self) -> None:
        """Delete every file, and the folder itself if the store has folders."""
        ...


@dataclass(frozen=True)
class StoredFile:
    """One file of a store."""

    store: Store
    name: str

    def read_range(self, start: int, stop: int) -> bytes:
        """Return its bytes [start, stop)."""
        return self.store.read_range(self.name, start, stop)


@dataclass(frozen=True)
class FolderStore:
    """A folder on this machine. Links are followed.

    Files are read, not memory-mapped: if another process shortens a mapped file, the reading process is killed.
    """

    folder: Path
    request_bytes = 0

    def __reduce__(self) -> tuple[type[FolderStore], tuple[Path]]:
        return FolderStore, (self.folder.absolute(),)  # the same folder in a process with another working directory

    def size(self, name: str) -> int:
        facts = os.stat(f"{self.folder}/{name}")  # a Path would take as long as the call
        self._check_kind(name, facts)
        return facts.st_size

    def read(self, name: str) -> bytes:
        return self.read_range(name, 0, None)

    def read_range(self, name: str, start: int, stop: int | None) -> bytes:
        """Return the bytes [start, stop) of a file; None: to its end."""
        parts: list[bytes] = []
        file = os.open(f"{self.folder}/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # waits for no pipe
        try:
            facts = os.fstat(file)
            self._check_kind(name, facts)
            if stop is None:
                stop = facts.st_size
            # One read returns at most 2 GiB.
            while start < stop and (data := os.pread(file, stop - start, start)):
                parts.append(data)
                start += len(data)
        except OSError as error:
            error.filename = f"{self.folder}/{name}"
            raise
        finally:
            os.close(file)
        if start < stop:
            raise OSError(
                f"{self.folder / name}: ends {stop - start} bytes before byte {stop}. Copy or build it again."
            )
        return b"".join(parts)

    def _check_kind(self, name: str, facts: os.stat_result) -> None:
        """Refuse what is no file: it would be waited for, or be written to.

        Raises:
            ShardSetError: it is a folder, a pipe, a device or a socket, or a link to one.
        """
        if stat.S_ISREG(facts.st_mode):
            return
        found = "a folder" if stat.S_ISDIR(facts.st_mode) else "a pipe, a device or a socket"
        raise set_error(
            "file_unreadable", name, f"in {self.folder}: {found}; expected a regular file. Copy or build it again."
        )

    def child(self, name: str) -> FolderStore:
        return FolderStore(self.folder / name)

    def find(self, name: str) -> ListedFile | None:
        try:
            facts = (self.folder / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return ListedFile(name, facts.st_size, str(facts.st_mtime_ns)) if stat.S_ISREG(facts.st_mode) else None

    def list(self) -> Iterator[ListedFile]:
        """Yield every file but those whose names begin with a dot, which are not whole."""
        for folder, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for path in (Path(folder, name) for name in names if not name.startswith(".")):
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    facts = path.stat()
                    yield ListedFile(path.relative_to(self.folder).as_posix(), facts.st_size, str(facts.st_mtime_ns))

    def put(self, name: str, content: bytes | Path) -> str:
        with self._open_new(name) as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file)
        return str((self.folder / name).stat().st_mtime_ns)

    def create(self, name: str, content: bytes) -> bool:
        place = self.folder / name
        temporary = place.with_name(f".{place.name}.{os.urandom(8).hex()}.new")
        with self._open_new(str(temporary.relative_to(self.folder))) as file:
            file.write(content)
        try:
            os.link(temporary, place)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        sync_path(place.parent)
        return True

    def delete(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def delete_all(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)

    def _open_new(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        return atomic_open(self.folder / name)

    def __str__(self) -> str:
        return str(self.folder)


def reads_at_once(store: Store) -> int:
    """Return how many threads read small files of a store: one if a request costs nothing."""
    return READS_AT_ONCE if store.request_bytes else 1


def folder_beside(store: Store, ending: str) -> Path:
    """Return the folder next to a store's folder, for what is written about its set: `DIR.audit`.

    Raises:
        InputError: the set is not in a folder of this machine.
    """
    if store.folder is None:
        raise InputError(f"{store}: is not a folder, so nothing is written next to it. Give a folder with --out.")
    whole = Path(os.path.realpath(store.folder))
    return whole.with_name(f"{whole.name}.{ending}")


def check_outside(out: Path, store: Store) -> None:
    """Check that files about a set are not written to the folder of the set's store, or to another user's.

    Raises:
        InputError: `out` is in that folder, or another user's.
    """
    if out.is_dir():
        check_own_folder(out)
    if store.folder is not None and is_within(out, store.folder):
        raise InputError(f"{out}: inside the set's own folder, which may hold only the set. Give another.")


def require_folder(store: Store) -> Path:
    """Return the folder of a store, for what needs its files on this machine.

    Raises:
        InputError: there is no such folder on this machine; the message says how to get one.
    """
    if store.folder is None:
        remedy = f"Pull the set first: tokenmill pull {store} --out DIR"
        if not str(store).startswith("hf://"):
            remedy = "Copy it to a folder first, with the tool of that store."
        raise InputError(f"{store}: is not a folder of this machine, and this needs one. {remedy}")
    return store.folder
