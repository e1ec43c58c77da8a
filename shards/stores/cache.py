"""A cache: a folder on this machine that keeps whole files of remote sets, up to a number of bytes, for many processes.

    CACHE/lock               locked for every change of the folder; never while bytes are fetched or read
    CACHE/SET/SHA256         a whole file, verified; its access time says when it was last taken
    CACHE/SET/.SHA256.part   a file that is being fetched, of its full size from the start, so that it counts

SET is the set's identity (the SHA-256 of its manifest), SHA256 the file's own digest: two sets, or two versions of
one, never mix. Every lock is a `flock` of the kernel, which ends with its process: a killed process leaves no lock
behind. A process that reads a file holds a shared lock on it, one that fetches or removes it an exclusive one:

- The bytes in the folder never exceed the limit: room is made before a file is fetched, from the files that were taken
  longest ago. A file that a process is reading is not removed, because removing it would free no room until then.
- A process that needs room which others are using waits. It holds nothing that they wait for, so the wait ends.
- A fetched file passes from its exclusive lock to a shared one without a gap in which it could be removed. So every
  fetched file is read at least once, and processes that read different shards cannot starve each other. With little
  room they do fetch files again; with room for all their shards they do not.
- One process fetches a file; the others wait for it. If it dies, one of them fetches the file from the start.
- What a dead process was fetching counts until it is removed, the next time that anyone needs room.

Files are not synced to disk. Instead, each process hashes a file when it takes it for the first time, and again if it
has changed: after a power cut, or a fault of the disk, the file is fetched again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from shards.errors import InputError, Problem, ShardSetError
from shards.stores.files import DiskError
from shards.stores.retry import StoppedError
from shards.terminal.reporter import Note

MOST_DEFAULT_BYTES = 100 * 10**9
"""The default limit is half of the free disk space, so that checkpoints have room too, but at most this: 75 billion
compressed uint16 tokens. Training needs no more than two shards; more saves fetching in later epochs and runs."""

POLL_S = 0.02
"""Seconds between two checks of a lock that another process holds."""

NOTE_AFTER_S = 5.0
"""Seconds after which the user is told what a process waits for."""

LOCK_FILE = "lock"
PART_SUFFIX = ".part"
_SET_FOLDER = re.compile(r"[0-9a-f]{64}")


class CacheError(InputError):
    """The folder cannot be used as a cache, or the limit is too small."""


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file that a cache can keep."""

    address: str
    """The file's address in the remote store, for messages."""
    name: str
    set_id: str
    """The set's identity: the SHA-256 of its manifest."""
    sha256: str
    bytes: int


class Cache:
    """A folder of whole files and its limit. Safe to share between threads, and to send to another process."""

    def __init__(self, folder: Path | None = None, limit: int | None = None, *, note: Note | None = None):
        """Open a cache: create the folder, and remove the files above the limit.

        Args:
            folder: the folder; `default_cache_folder` when None. Any number of processes of this machine share it. On a
                file system without `flock` it cannot be used.
            limit: the number of bytes that the files may hold. Each process keeps to its own limit. When None, half of
                the free disk space (what the cache holds counts as free), but at most `MOST_DEFAULT_BYTES`.
            note: called with what the user should know: waits, damaged files, failures that are retried.

        Raises:
            CacheError: the folder cannot be written to.
        """
        self.folder = (folder or default_cache_folder()).absolute()
        self.note: Note = note or (lambda text: None)
        self._verified: set[tuple[int, int, int]] = set()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                if limit is None:
                    held = sum(path.stat().st_size for path in self._list_files())
                    limit = min(MOST_DEFAULT_BYTES, (shutil.disk_usage(self.folder).free + held) // 2)
                self.limit = limit
                self._make_room(0)
        except OSError as error:
            reason = f"{self.folder}: cannot be used as a cache: {error.strerror}"
            raise CacheError(f"{reason}. Choose another folder with --cache.") from error

    def __reduce__(self) -> tuple[type[Cache], tuple[Path, int]]:
        return Cache, (self.folder, self.limit)

    @contextlib.contextmanager
    def hold(self, file: CachedFile, fetch: Callable[[int], None], *, stop: Event) -> Generator[int]:
        """Yield a descriptor of a whole, verified file, which stays in the folder while the body runs.

        Args:
            file: the file.
            fetch: writes the file's bytes to a descriptor; called if the folder does not have the file.
            stop: set by another thread to end a wait or a fetch.

        Raises:
            ShardSetError: the file was fetched twice, and its bytes were not what the manifest says.
            StoppedError: `stop` was set.
            CacheError: the file is larger than the limit.
            DiskError: the disk is full.
            OSError: the folder cannot be read or written to.
        """
        descriptor = self._take(file, fetch, stop)
        try:
            yield descriptor
        finally:
            _release(descriptor)

    def _take(self, file: CachedFile, fetch: Callable[[int], None], stop: Event) -> int:
        """Return a descriptor with a shared lock."""
        path = self.folder / file.set_id / file.sha256
        waiting = _Waiting(stop, self.note)
        while True:
            descriptor = self._open_whole(path, waiting)
            if descriptor is None:
                descriptor = self._fetch(file, path, fetch, waiting)
            if descriptor is None:
                continue  # another process has just fetched it, or has failed to
            try:
                whole = self._verify(descriptor, file)
            except BaseException:
                _release(descriptor)
                raise
            if whole:
                return descriptor
            self._remove_damaged(path, descriptor)

    def _open_whole(self, path: Path, waiting: _Waiting) -> int | None:
        """Return a descriptor with a shared lock; None if the folder does not have the file."""
        while True:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            if _lock(descriptor, fcntl.LOCK_SH):
                if os.fstat(descriptor).st_nlink:
                    return descriptor
                _release(descriptor)  # removed before the lock was ours
                return None
            os.close(descriptor)
            waiting.pause(f"{path}: waiting for another process that removes it")

    def _verify(self, descriptor: int, file: CachedFile) -> bool:
        """Return whether a file has the right digest, and note that it was taken."""
        facts = os.fstat(descriptor)
        mark = facts.st_ino, facts.st_mtime_ns, facts.st_size
        if mark not in self._verified:
            if facts.st_size != file.bytes or _hash(descriptor) != file.sha256:
                return False
            self._verified.add(mark)
        with contextlib.suppress(PermissionError):  # another user's file: its time stays
            os.utime(descriptor, ns=(time.time_ns(), facts.st_mtime_ns))
        return True

    def _remove_damaged(self, path: Path, descriptor: int) -> None:
        """Remove a file whose bytes are wrong, unless another process has replaced it, and release it."""
        with self._locked():
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(descriptor)):
                    path.unlink()
                    self.note(f"{path}: damaged in the cache: its bytes have changed; fetching it again")
            _release(descriptor)

    def _fetch(self, file: CachedFile, path: Path, fetch: Callable[[int], None], waiting: _Waiting) -> int | None:
        """Fetch a file and return a descriptor with a shared lock; None if another process fetches it meanwhile."""
        part = path.with_name(f".{path.name}{PART_SUFFIX}")
        with self._locked():
            if path.exists():
                return None
            part.parent.mkdir(exist_ok=True)
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            mine = _lock(descriptor, fcntl.LOCK_EX)
        if not mine:
            os.close(descriptor)
            waiting.pause(f"{file.name}: waiting for another process of this machine that fetches it")
            return None
        try:
            self._reserve(file, descriptor, waiting)
            for again in (False, True):
                fetch(descriptor)
                if self._verify(descriptor, file):
                    break
                if again:
                    found = f"fetched twice from {file.address}, with sha256 {_hash(descriptor)}"
                    message = f"{found}; expected {file.sha256} by the manifest. Copy or push the set again."
                    raise ShardSetError([Problem("file_checksum", file.name, message)])
            with self._locked():
                part.rename(path)
                _lock(descriptor, fcntl.LOCK_SH)  # nobody removes it in between: that needs the folder's lock
        except BaseException:
            with contextlib.suppress(OSError), self._locked():
                part.unlink(missing_ok=True)
            _release(descriptor)
            raise
        return descriptor

    def _reserve(self, file: CachedFile, descriptor: int, waiting: _Waiting) -> None:
        """Give a file that will be fetched its full size, once there is room for it."""
        if file.bytes > self.limit:
            found = f"{file.name}: {file.bytes:,} bytes, more than the cache's limit of {self.limit:,}"
            raise CacheError(f"{found}. Raise --cache-limit.")
        os.ftruncate(descriptor, 0)  # the rest of a dead process's fetch
        while True:
            with self._locked():
                if self._make_room(file.bytes):
                    if file.bytes:
                        self._allocate(descriptor, file)
                    return
            used = f"the cache's limit of {self.limit:,} bytes is in use by other processes"
            waiting.pause(f"{file.name}: waiting for room: {used}; a larger --cache-limit ends such waits")

    def _allocate(self, descriptor: int, file: CachedFile) -> None:
        try:
            os.posix_fallocate(descriptor, 0, file.bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            os.ftruncate(descriptor, 0)
            free = shutil.disk_usage(self.folder).free
            found = f"{self.folder}: {error.strerror}: {file.name} needs {file.bytes:,} bytes, {free:,} are free"
            raise DiskError(f"{found}. Free some, lower --cache-limit, or choose another --cache.") from error

    def _make_room(self, size: int) -> bool:
        """Remove what dead processes were fetching, then old files until `size` bytes fit; return whether they do.

        Only under the folder's lock.
        """
        used, whole = 0, list[tuple[int, int, Path]]()
        for path in self._list_files():
            facts = path.stat()
            if path.name.endswith(PART_SUFFIX) and _remove_unused(path):
                continue
            used += facts.st_size
            if not path.name.startswith("."):
                whole.append((facts.st_atime_ns, facts.st_size, path))
        for _, freed, path in sorted(whole):
            if used + size <= self.limit:
                break
            if _remove_unused(path):
                used -= freed
        return used + size <= self.limit

    def _list_files(self) -> Iterator[Path]:
        """Yield every file of every set; remove the folders of sets that have none."""
        for folder in list(self.folder.iterdir()):
            if _SET_FOLDER.fullmatch(folder.name):
                with contextlib.suppress(OSError):
                    folder.rmdir()  # fails unless it is empty
                    continue
                yield from list(folder.iterdir())

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the folder's lock."""
        descriptor = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            _release(descriptor)


class _Waiting:
    """A wait for other processes: short pauses, and one sentence for the user when it lasts."""

    def __init__(self, stop: Event, note: Note):
        self._stop, self._note = stop, note
        self._until = time.monotonic() + NOTE_AFTER_S

    def pause(self, why: str) -> None:
        """Pause for a moment.

        Raises:
            StoppedError: somebody has asked for the wait to end.
        """
        if time.monotonic() > self._until:
            self._until = float("inf")
            self._note(why)
        if self._stop.wait(POLL_S):
            raise StoppedError(f"{why}: stopped")


def default_cache_folder() -> Path:
    """Return the folder of this user's cache: `tokenmill/shards` in XDG_CACHE_HOME, or in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenmill" / "shards"


def _lock(descriptor: int, kind: int) -> bool:
    """Take a lock if no other process's lock is in the way; return whether it was taken."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _release(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may hold a copy of the descriptor
    os.close(descriptor)


def _remove_unused(path: Path) -> bool:
    """Remove a file unless a process is reading or fetching it; return whether it was removed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _lock(descriptor, fcntl.LOCK_EX):
            return False
        path.unlink()
        return True
    finally:
        _release(descriptor)


def _hash(descriptor: int) -> str:
    """Return the hex SHA-256 of an open file."""
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()
