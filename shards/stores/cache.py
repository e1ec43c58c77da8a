"""A cache: a folder on this machine that keeps what was fetched, up to a number of bytes, for many processes.

    CACHE/lock               locked for every change of the folder; never while bytes are fetched or read
    CACHE/SET/SHA256         a whole file of a set, verified; its access time says when it was last taken
    CACHE/SET/.SHA256.part   a file that is being fetched, of its full size from the start, so that it counts
    CACHE/keyed/KEY          bytes that a build keeps under a text with the SHA-256 KEY, and then their own SHA-256

SET is the set's identity (the SHA-256 of its manifest), SHA256 the file's own digest: two sets, or two versions of
one, never mix. Every lock is a `flock` of the kernel, which ends with its process.

- Room is made before a file is fetched: the files that were taken longest ago are removed. A process that reads a
  removed file has it open, and reads on.
- One process fetches a file, with several ranged requests at once; the others wait for it. If it dies, one of them
  fetches the file from the start, and what it left is removed the next time that anyone needs room.
- A process that needs room for a file waits until the fetches of others have ended.

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
from pathlib import Path
from threading import Event

from shards.errors import InputError, set_error
from shards.stores.files import make_folder, no_follow, try_lock
from shards.terminal.reporter import Advance, report

MOST_DEFAULT_BYTES = 100 * 10**9
"""The default limit is half of the free disk space, so that checkpoints have room too, but at most this: 75 billion
compressed uint16 tokens. Training needs no more than two shards; more saves fetching in later epochs and runs."""

POLL_S = 0.02
"""Seconds between two checks of a lock that another process holds."""

PART_SUFFIX = ".part"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_KEYED = "keyed"
_DIGEST_BYTES = hashlib.sha256().digest_size
_FOLDER = re.compile(rf"[0-9a-f]{{64}}|{_KEYED}")


class Cache:
    """A folder of fetched bytes and its limit. Safe to share between threads, and to send to another process.

    The process's reporter (`shards.terminal.reporter`) is told about waits and damaged files.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int | None = None):
        """Open a cache: create the folder, and remove the files above the limit.

        Args:
            folder: the folder; `default_cache_folder` when None. Any number of processes of this machine share it. On a
                file system without `flock` it cannot be used.
            limit: the number of bytes that the files may hold. Each process keeps to its own limit. When None, half of
                the free disk space (what the cache holds counts as free), but at most `MOST_DEFAULT_BYTES`.

        Raises:
            InputError: the folder cannot be written to, or is another user's.
        """
        self.folder = Path(folder or default_cache_folder()).absolute()
        self._verified: set[tuple[int, int, int]] = set()
        self._unmeasured = 0
        try:
            make_folder(self.folder)
            with self._locked():
                if limit is None:
                    held = sum(path.stat().st_size for path in self._list_files())
                    limit = min(MOST_DEFAULT_BYTES, (shutil.disk_usage(self.folder).free + held) // 2)
                self.limit = limit
                self._make_room(0)
        except OSError as error:
            raise InputError(
                f"{self.folder}: cannot be used as a cache: {error.strerror}. Choose another folder with --cache."
            ) from error

    def __reduce__(self) -> tuple[type[Cache], tuple[Path, int]]:
        return Cache, (self.folder, self.limit)

    @contextlib.contextmanager
    def hold(self, path: Path, name: str, size: int, fetch: Advance, *, stop: Event) -> Generator[Path]:
        """Yield a path at which a whole, verified file can be read while the body runs.

        Args:
            path: the file's place in the folder; its last part is the file's SHA-256.
            name: the file's name in its set, for messages.
            size: the file's bytes.
            fetch: writes the file's bytes to a descriptor; called if the folder does not have the file.
            stop: set by another thread to end a wait or a fetch.

        Raises:
            ShardSetError: the file was fetched twice, and its bytes were not what the manifest says.
            InputError: `stop` was set, or the disk is full.
            StoreError: the file cannot be fetched.
            OSError: the folder cannot be read or written to.
        """
        while True:
            try:
                descriptor = no_follow(str(path), os.O_RDONLY)
            except FileNotFoundError:
                descriptor = self._fetch(path, name, size, fetch, stop)
                if descriptor is None:
                    continue  # another process has just fetched it, or has failed to
            try:
                if self._verify(descriptor, path.name, size):
                    yield Path(f"/dev/fd/{descriptor}")
                    return
            finally:
                os.close(descriptor)
            with self._locked():
                path.unlink(missing_ok=True)
            report(f"{path}: damaged in the cache: its bytes have changed; fetching it again")

    def get(self, key: str) -> bytes | None:
        """Return the bytes that are kept under a text; None if there are none, or they are damaged."""
        try:
            with self._keyed_path(key).open("rb") as file:
                kept = file.read()
                _note_taken(file.fileno())
        except FileNotFoundError:
            return None
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
        with self._locked():
            # The folder may hold many small files, so it is not measured for each.
            if self._unmeasured + size > self.limit // 64 and not self._make_room(size):
                return
            self._unmeasured += size
            path.parent.mkdir(exist_ok=True)
            try:
                part.unlink(missing_ok=True)
                with part.open("xb") as file:
                    file.write(content + hashlib.sha256(content).digest())
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
        return self.folder / _KEYED / hashlib.sha256(key.encode()).hexdigest()

    def _verify(self, descriptor: int, sha256: str, size: int) -> bool:
        """Return whether a file has the right digest, and note that it was taken."""
        facts = os.fstat(descriptor)
        mark = facts.st_ino, facts.st_mtime_ns, facts.st_size
        if mark not in self._verified:
            if facts.st_size != size or _hash(descriptor) != sha256:
                return False
            self._verified.add(mark)
        _note_taken(descriptor)
        return True

    def _fetch(self, path: Path, name: str, size: int, fetch: Advance, stop: Event) -> int | None:
        """Fetch a file and return its descriptor; None if another process has fetched it meanwhile."""
        part = path.with_name(f".{path.name}{PART_SUFFIX}")
        with self._locked():
            if path.exists():
                return None
            part.parent.mkdir(exist_ok=True)
            descriptor = no_follow(str(part), os.O_RDWR | os.O_CREAT)
            mine = try_lock(descriptor)
        try:
            if not mine:
                _poll(lambda: try_lock(descriptor), stop, f"{name}: another process of this machine fetches it")
                _release(descriptor)
                return None
            # The bytes count from here on, before the first of them is fetched.
            self._reserve(name, size, descriptor, stop)
            for again in (False, True):
                fetch(descriptor)
                if self._verify(descriptor, path.name, size):
                    break
                if again:
                    found = f"fetched twice, with sha256 {_hash(descriptor)}"
                    message = f"{found}; expected {path.name} by the manifest. Copy or push the set again."
                    raise set_error("file_checksum", name, message)
            with self._locked():
                part.rename(path)
        except BaseException:
            if mine:
                with contextlib.suppress(OSError), self._locked():
                    part.unlink(missing_ok=True)
            _release(descriptor)
            raise
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return descriptor

    def _reserve(self, name: str, size: int, descriptor: int, stop: Event) -> None:
        """Give a file that will be fetched its full size, once there is room for it."""
        os.ftruncate(descriptor, 0)  # the rest of a dead process's fetch

        def allocate() -> bool:
            with self._locked():
                if not self._make_room(size):
                    return False
                if size:
                    os.posix_fallocate(descriptor, 0, size)
                return True

        used = f"the cache's limit of {self.limit:,} bytes is in use by other processes"
        try:
            _poll(allocate, stop, f"{name}: no room: {used}; a larger --cache-limit ends such waits")
        except OSError as error:
            if error.errno not in _FULL:
                raise
            os.ftruncate(descriptor, 0)
            free = shutil.disk_usage(self.folder).free
            raise InputError(
                f"{self.folder}: {error.strerror}: {name} needs {size:,} bytes, {free:,} are free. Free some, lower "
                "--cache-limit, or choose another --cache."
            ) from error

    def _make_room(self, size: int) -> bool:
        """Remove what dead processes fetched, then old files; return whether `size` bytes fit then.

        Only under the folder's lock.
        """
        # Count what is there. A part that nobody holds is of a dead process.
        used, whole = 0, list[tuple[int, int, Path]]()
        for path in self._list_files():
            facts = path.lstat()
            if path.is_symlink():
                path.unlink()  # nothing here makes one
            elif path.name.endswith(PART_SUFFIX):
                used += 0 if _remove_abandoned(path) else facts.st_size
            else:
                used += facts.st_size
                whole.append((facts.st_atime_ns, facts.st_size, path))
        for _, freed, path in sorted(whole):
            if used + size <= self.limit:
                break
            path.unlink()
            used -= freed
        self._unmeasured = 0
        return used + size <= self.limit

    def _list_files(self) -> Iterator[Path]:
        """Yield every file of every set; remove the folders of sets that have none."""
        for folder in list(self.folder.iterdir()):
            if _FOLDER.fullmatch(folder.name) and not folder.is_symlink():
                with contextlib.suppress(OSError):
                    folder.rmdir()  # fails unless it is empty
                    continue
                yield from list(folder.iterdir())

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the folder's lock."""
        descriptor = no_follow(str(self.folder / "lock"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            _release(descriptor)


def default_cache_folder() -> Path:
    """Return the folder of this user's cache: `tokenmill/shards` in XDG_CACHE_HOME, or in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenmill" / "shards"


def _poll(done: Callable[[], bool], stop: Event, why: str) -> None:
    """Wait for another process until `done` returns True.

    Raises:
        InputError: `stop` was set.
    """
    if done():
        return
    report(f"{why}: waiting")
    while not done():
        if stop.wait(POLL_S):
            raise InputError(f"{why}: stopped")


def _note_taken(descriptor: int) -> None:
    """Set a file's access time: the files taken longest ago are removed first."""
    with contextlib.suppress(PermissionError):  # another user's file: its time stays
        os.utime(descriptor, ns=(time.time_ns(), os.fstat(descriptor).st_mtime_ns))


def _release(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may hold a copy of the descriptor
    os.close(descriptor)


def _remove_abandoned(part: Path) -> bool:
    """Remove a part unless a process is fetching it; return whether it was removed."""
    descriptor = no_follow(str(part), os.O_RDONLY)
    try:
        if not try_lock(descriptor):
            return False
        part.unlink()
        return True
    finally:
        _release(descriptor)


def _hash(descriptor: int) -> str:
    """Return the hex SHA-256 of an open file."""
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()
