"""A cache: a folder on this machine that keeps what was fetched, verified, up to a number of bytes, for many processes.

    CACHE/lock               locked for every change of the folder; never while bytes are fetched or read; its number,
                             at least the bytes of all files, mostly saves `put` from measuring them
    CACHE/SET/SHA256         a whole file of a set, verified; its access time says when it was last taken
    CACHE/SET/.SHA256.part   a file that is being fetched, of its full size from the start, so that it counts
    CACHE/keyed/KEY          bytes that a build keeps under a text with the SHA-256 KEY, and then their own SHA-256

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

from shards.errors import InputError, set_error
from shards.terminal.reporter import Advance, report

MOST_DEFAULT_BYTES = 100 * 10**9
"""The default limit is half of the free disk space, so that checkpoints have room too, but at most this: 75 billion
compressed uint16 tokens. Training needs no more than two shards; more saves fetching in later epochs and runs."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

POLL_S = 0.02
"""Seconds between two checks of a lock that another process holds."""

LOCK_FILE = "lock"
PART_SUFFIX = ".part"
KEYED = "keyed"
_MOST_DIGITS = 20
_DIGEST_BYTES = hashlib.sha256().digest_size
_FOLDER = re.compile(rf"[0-9a-f]{{64}}|{KEYED}")


@dataclass(frozen=True)
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
    """A folder of fetched bytes and its limit. Safe to share between threads, and to send to another process.

    The process's reporter (`shards.terminal.reporter`) is told about long waits and damaged files.
    """

    def __init__(self, folder: Path | None = None, limit: int | None = None):
        """Open a cache: create the folder, and remove the files above the limit.

        Args:
            folder: the folder; `default_cache_folder` when None. Any number of processes of this machine share it. On a
                file system without `flock` it cannot be used.
            limit: the number of bytes that the files may hold. Each process keeps to its own limit. When None, half of
                the free disk space (what the cache holds counts as free), but at most `MOST_DEFAULT_BYTES`.

        Raises:
            InputError: the folder cannot be written to.
        """
        self.folder = (folder or default_cache_folder()).absolute()
        self._verified: set[tuple[int, int, int]] = set()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked() as lock:
                if limit is None:
                    held = sum(path.stat().st_size for path in self._list_files())
                    limit = min(MOST_DEFAULT_BYTES, (shutil.disk_usage(self.folder).free + held) // 2)
                self.limit = limit
                self._make_room(0, lock)
        except OSError as error:
            reason = f"{self.folder}: cannot be used as a cache: {error.strerror}"
            raise InputError(f"{reason}. Choose another folder with --cache.") from error

    def __reduce__(self) -> tuple[type[Cache], tuple[Path, int]]:
        return Cache, (self.folder, self.limit)

    @contextlib.contextmanager
    def hold(self, file: CachedFile, fetch: Advance, *, stop: Event) -> Generator[Path]:
        """Yield the path of a whole, verified file, which stays in the folder while the body runs.

        Args:
            file: the file.
            fetch: writes the file's bytes to a descriptor; called if the folder does not have the file.
            stop: set by another thread to end a wait or a fetch.

        Raises:
            ShardSetError: the file was fetched twice, and its bytes were not what the manifest says.
            InputError: `stop` was set.
            StoreError: the file cannot be fetched.
            InputError: the file is larger than the limit, or the disk is full.
            OSError: the folder cannot be read or written to.
        """
        path = self.folder / file.set_id / file.sha256
        descriptor = self._take(file, path, fetch, stop)
        try:
            yield path
        finally:
            _release(descriptor)

    def get(self, key: str) -> bytes | None:
        """Return the bytes kept under a text; None if there are none, or they are damaged."""
        descriptor = self._open_whole(self._keyed_path(key), Event())
        if descriptor is None:
            return None
        try:
            with open(descriptor, "rb", closefd=False) as file:
                kept = file.read()
            _note_taken(descriptor)
        finally:
            _release(descriptor)
        content, digest = kept[:-_DIGEST_BYTES], kept[-_DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def put(self, key: str, content: bytes) -> None:
        """Keep bytes under a text, unless the limit or the disk has no room for them."""
        size = len(content) + _DIGEST_BYTES
        if size > self.limit:
            return  # making room would empty the folder for nothing
        path = self._keyed_path(key)
        part = path.with_name(f".{path.name}{PART_SUFFIX}")
        # Under the lock to the end: no other process takes this part for a dead one's.
        with self._locked() as lock:
            if not self._make_room(size, lock, most=_read_most(lock)):
                return
            path.parent.mkdir(exist_ok=True)
            try:
                part.write_bytes(content + hashlib.sha256(content).digest())
                part.rename(path)
            except OSError as error:
                part.unlink(missing_ok=True)
                if error.errno not in _FULL:
                    raise

    def delete(self, key: str) -> None:
        """Delete what is kept under a text, because it cannot be used."""
        with self._locked():  # another process may be measuring the folder
            self._keyed_path(key).unlink(missing_ok=True)

    def _keyed_path(self, key: str) -> Path:
        return self.folder / KEYED / hashlib.sha256(key.encode()).hexdigest()

    def _take(self, file: CachedFile, path: Path, fetch: Advance, stop: Event) -> int:
        """Return a descriptor with a shared lock."""
        while True:
            descriptor = self._open_whole(path, stop)
            if descriptor is None:
                descriptor = self._fetch(file, path, fetch, stop)
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

    def _open_whole(self, path: Path, stop: Event) -> int | None:
        """Return a descriptor with a shared lock; None if the folder does not have the file."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        _poll(lambda: _lock(descriptor, fcntl.LOCK_SH), stop, f"{path}: another process removes it", descriptor)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        _release(descriptor)  # removed before the lock was ours
        return None

    def _verify(self, descriptor: int, file: CachedFile) -> bool:
        """Return whether a file has the right digest, and note that it was taken."""
        facts = os.fstat(descriptor)
        mark = facts.st_ino, facts.st_mtime_ns, facts.st_size
        if mark not in self._verified:
            if facts.st_size != file.bytes or _hash(descriptor) != file.sha256:
                return False
            self._verified.add(mark)
        _note_taken(descriptor)
        return True

    def _remove_damaged(self, path: Path, descriptor: int) -> None:
        """Remove a file whose bytes are wrong, unless another process has replaced it, and release it."""
        with self._locked():
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(descriptor)):
                    path.unlink()
                    report(f"{path}: damaged in the cache: its bytes have changed; fetching it again")
            _release(descriptor)

    def _fetch(self, file: CachedFile, path: Path, fetch: Advance, stop: Event) -> int | None:
        """Fetch a file and return a descriptor with a shared lock; None if another process fetches it meanwhile."""
        part = path.with_name(f".{path.name}{PART_SUFFIX}")
        with self._locked():
            if path.exists():
                return None
            part.parent.mkdir(exist_ok=True)
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            mine = _lock(descriptor, fcntl.LOCK_EX)
        if not mine:
            why = f"{file.name}: another process of this machine fetches it"
            _poll(lambda: _lock(descriptor, fcntl.LOCK_SH), stop, why, descriptor)
            _release(descriptor)
            return None
        try:
            # The bytes count from here on, before the first of them is fetched.
            self._reserve(file, descriptor, stop)
            for again in (False, True):
                fetch(descriptor)
                if self._verify(descriptor, file):
                    break
                if again:
                    found = f"fetched twice from {file.address}, with sha256 {_hash(descriptor)}"
                    message = f"{found}; expected {file.sha256} by the manifest. Copy or push the set again."
                    raise set_error("file_checksum", file.name, message)
            # From the exclusive lock to a shared one without a gap.
            with self._locked():
                part.rename(path)
                _lock(descriptor, fcntl.LOCK_SH)  # nobody removes it in between: that needs the folder's lock
        except BaseException:
            with contextlib.suppress(OSError), self._locked():
                part.unlink(missing_ok=True)
            _release(descriptor)
            raise
        return descriptor

    def _reserve(self, file: CachedFile, descriptor: int, stop: Event) -> None:
        """Give a file that will be fetched its full size, once there is room for it."""
        if file.bytes > self.limit:
            found = f"{file.name}: {file.bytes:,} bytes, more than the cache's limit of {self.limit:,}"
            raise InputError(f"{found}. Raise --cache-limit.")
        os.ftruncate(descriptor, 0)  # the rest of a dead process's fetch

        def allocate() -> bool:
            with self._locked() as lock:
                if not self._make_room(file.bytes, lock):
                    return False
                if file.bytes:
                    os.posix_fallocate(descriptor, 0, file.bytes)
                return True

        used = f"the cache's limit of {self.limit:,} bytes is in use by other processes"
        try:
            _poll(allocate, stop, f"{file.name}: no room: {used}; a larger --cache-limit ends such waits")
        except OSError as error:
            if error.errno not in _FULL:
                raise
            os.ftruncate(descriptor, 0)
            free = shutil.disk_usage(self.folder).free
            found = f"{self.folder}: {error.strerror}: {file.name} needs {file.bytes:,} bytes, {free:,} are free"
            raise InputError(f"{found}. Free some, lower --cache-limit, or choose another --cache.") from error

    def _make_room(self, size: int, lock: int, *, most: int | None = None) -> bool:
        """Remove what dead processes were fetching, then old files until `size` bytes fit; return whether they do.

        Nothing is measured where `most` bytes of files and `size` fit. Only under the folder's lock.
        """
        if most is not None and most + size <= self.limit:
            _write_most(lock, most + size)
            return True
        # Count what is there. A part that nobody holds is of a dead process.
        used, whole = 0, list[tuple[int, int, Path]]()
        for path in self._list_files():
            facts = path.stat()
            if path.name.endswith(PART_SUFFIX) and _remove_unused(path):
                continue
            used += facts.st_size
            if not path.name.startswith("."):
                whole.append((facts.st_atime_ns, facts.st_size, path))
        # Remove what was taken longest ago; what a process reads stays.
        for _, freed, path in sorted(whole):
            if used + size <= self.limit:
                break
            if _remove_unused(path):
                used -= freed
        _write_most(lock, used + size)
        return used + size <= self.limit

    def _list_files(self) -> Iterator[Path]:
        """Yield every file of every set; remove the folders of sets that have none."""
        for folder in list(self.folder.iterdir()):
            if _FOLDER.fullmatch(folder.name):
                with contextlib.suppress(OSError):
                    folder.rmdir()  # fails unless it is empty
                    continue
                yield from list(folder.iterdir())

    @contextlib.contextmanager
    def _locked(self) -> Generator[int]:
        """Hold the folder's lock, and yield its descriptor."""
        descriptor = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            _release(descriptor)


def _read_most(lock: int) -> int | None:
    """Return the number in the lock's file, an upper bound of the files' bytes; None if a crash left none."""
    text = os.pread(lock, _MOST_DIGITS, 0)
    return int(text) if len(text) == _MOST_DIGITS and text.isdigit() else None


def _write_most(lock: int, most: int) -> None:
    os.pwrite(lock, b"%0*d" % (_MOST_DIGITS, most), 0)


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


def _poll(done: Callable[[], bool], stop: Event, why: str, opened: int | None = None) -> None:
    """Wait until `done` returns True; if the wait fails, close a descriptor that was opened for it.

    Raises:
        InputError: `stop` was set.
    """
    try:
        if done():  # no wait: a file that was here is no answer of the network
            return
        report(f"{why}: waiting")
        while not done():
            if stop.wait(POLL_S):
                raise InputError(f"{why}: stopped")
    except BaseException:
        if opened is not None:
            os.close(opened)
        raise


def _note_taken(descriptor: int) -> None:
    """Set a file's access time: the files taken longest ago are removed first."""
    with contextlib.suppress(PermissionError):  # another user's file: its time stays
        os.utime(descriptor, ns=(time.time_ns(), os.fstat(descriptor).st_mtime_ns))


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
