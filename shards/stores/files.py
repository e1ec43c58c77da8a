"""Write files and folders on this machine whole or not at all; read, name, hash and lock them; check for disk space.

A file is written under a temporary name in the same folder, synced, and renamed at the end: a reader never sees half
of it, and a crash leaves only temporary names behind. A lock ends when its process ends, in whatever way.

Others may be able to write to the folder above. So a temporary name is random and must be new, no link is followed
from it, and a folder that another user has made is not taken for this user's.
"""

import contextlib
import errno
import fcntl
import functools
import glob
import hashlib
import math
import os
import re
import shutil
import socket
import stat
import tempfile
import weakref
from collections.abc import Generator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from shards.errors import InputError, RunError
from shards.terminal.amounts import format_size
from shards.terminal.reporter import report

TMP_SUFFIX = ".tmp"
STAGING_SUFFIX = ".unfinished"


@contextlib.contextmanager
def open_named(path: str | Path, most: float = math.inf) -> Generator[BufferedReader]:
    """Open a file that a user names to read its bytes, but no pipe or device, and none of more than `most` bytes.

    The block only reads this file: an error there names it, too.
    """
    try:
        with open(path, "rb", opener=_no_pipe) as file:
            if (size := os.fstat(file.fileno()).st_size) > most:
                raise OSError(errno.EOVERFLOW, f"it has {size:,} bytes, more than {most:,}")
            yield file
    except OSError as error:
        if error.errno and not error.filename:
            error.filename = str(path)
        raise


def _no_pipe(path: str, flags: int) -> int:
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(file).st_mode
        is_regular = stat.S_ISREG(mode)
        if is_regular and os.pread(file, 8, 0):
            is_regular = os.fstat(file).st_size > 0  # files of the kernel have no size, and some of them no end
        if is_regular or stat.S_ISDIR(mode):
            return file
        raise OSError(errno.ESPIPE, "a pipe or a device; expected a regular file", path)
    except OSError:
        os.close(file)
        raise


def read_file(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than `most` bytes.
    """
    with open_named(path, most) as file:
        return file.read()


@contextlib.contextmanager
def atomic_open(path: Path) -> Generator[BinaryIO]:
    """Open a file for writing. It appears under its name when it is complete and synced to disk, or not at all.

    The temporary name is unique: processes that write the same file, on whatever hosts, do not disturb each other.

    Raises:
        InputError: the name is that of a folder, a device or a pipe, which a file of that name would replace; or of
            another user's link.
        OSError: the disk is full or not writable.
    """
    check_no_planted_link(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path}: is not a regular file, and would be replaced. Remove it, or give another path.")
    temporary = path.with_name(f".{path.name}.{unique_name()}{TMP_SUFFIX}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def no_follow(path: str, flags: int) -> int:
    """Open a file, but not through a link of that name: the `opener` for a file that is not written by a new name."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


@functools.cache
def host_name() -> str:
    """Return this host's part of unique file names, which no other host has: its name, and a digest of its boot.

    Containers and rented nodes may share a host name and count processes from 1. After a restart of the machine the
    name is another one, so that earlier processes are not mistaken for current ones.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    name = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname())[:32].strip("-")
    return f"{name}-{hashlib.sha256(boot.encode()).hexdigest()[:8]}"


def unique_name() -> str:
    """Return a name that no other process, host or call gives: `HOST-PID-RANDOM`."""
    return f"{host_name()}-{os.getpid()}-{os.urandom(6).hex()}"


def is_abandoned(unique: str) -> bool:
    """Return whether a `unique_name` is of a process of this host that has ended."""
    match = re.fullmatch(r"(.+)-(\d+)-[0-9a-f]{12}", unique)
    try:
        if match is not None and match[1] == host_name():
            os.kill(int(match[2]), 0)  # one that is not reaped counts as alive
    except PermissionError:  # of another user
        pass
    except ProcessLookupError:
        return True
    return False


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a small file atomically."""
    with atomic_open(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically, in UTF-8."""
    write_bytes(path, text.encode())


def sync_path(path: Path) -> None:
    """Sync a file to disk; or a folder's entries, so that a rename in it survives a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def hash_file(path: Path) -> str:
    """Return the hex SHA-256 of a regular file on disk."""
    with open_named(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_room(needs: Sequence[tuple[str, Path, int]], remedy: str) -> None:
    """Check that the file system has room for files that will be written, on each disk.

    Args:
        needs: (what is written, folder, bytes). Folders on one file system share its free space; they need not exist.
        remedy: what the user can do other than free some space.

    Raises:
        InputError: a file system is too small; the message gives the numbers of each one.
    """
    # Folders on one disk share its room.
    by_device: dict[int, list[tuple[str, Path, int]]] = {}
    for need in needs:
        by_device.setdefault(_existing(need[1]).stat().st_dev, []).append(need)
    problems: list[str] = []
    for group in by_device.values():
        free = shutil.disk_usage(_existing(group[0][1])).free
        total = sum(size for _, _, size in group)
        if total > free:
            parts = ", ".join(f"{format_size(size)} for {what} in {folder}" for what, folder, size in group)
            problems.append(
                f"disk: needs {format_size(total)} ({parts}); {format_size(free)} are free, "
                f"{format_size(total - free)} too few. Free some. {remedy}"
            )
    if problems:
        raise InputError(problems)


def _existing(folder: Path) -> Path:
    """Return the folder whose disk is checked for space: this one, or its nearest parent that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def check_own_folder(folder: Path) -> None:
    """Refuse a folder that another user has made: what is in it, such as links, would decide where files are written.

    Raises:
        InputError: the folder is another user's, or is reached by a link that another user may have put there.
        OSError: it is not there.
    """
    check_no_planted_link(folder)
    _check_owner(folder, folder.stat().st_uid, folder, "belongs to another user")


def check_no_planted_link(path: Path) -> None:
    """Refuse a path to write to with another user's link in it, in a folder that others can write to.

    Raises:
        InputError: there is one.
    """
    path = path.absolute()
    for place in (path, *path.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            facts = place.lstat()
            if stat.S_ISLNK(facts.st_mode) and place.parent.stat().st_mode & 0o022:
                _check_owner(place, facts.st_uid, place.parent, "is a link of another user")


def _check_owner(place: Path, owner: int, folder: Path, found: str) -> None:
    """Refuse another user's folder or link. The owner is compared with that of a new file in a folder: a network's file
    system may give every file to one user."""
    if owner in (0, os.geteuid()):  # an administrator's folder for all, such as /scratch
        return
    with contextlib.suppress(PermissionError), tempfile.TemporaryFile(dir=folder) as file:
        if os.fstat(file.fileno()).st_uid == owner:
            return
    raise InputError(
        f"{place}: {found} (uid {owner}; this is {os.geteuid()}), so it is not used. Give a new folder, or one of your "
        "own."
    )


def is_within(path: Path, folder: Path) -> bool:
    """Return whether a path is a folder or in it, whatever links lead there; a link to itself leads nowhere."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def make_folder(folder: Path) -> None:
    """Make a folder to write files to, unless it is there already.

    Raises:
        InputError: it is another user's.
        OSError: it cannot be made.
    """
    check_no_planted_link(folder)
    folder.mkdir(parents=True, exist_ok=True)
    check_own_folder(folder)


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file or folder if no other process has it; return whether it was taken."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def lock_folder(folder: Path, *, wait: str = "") -> Generator[int]:
    """Lock a folder on this machine for this process. The lock ends when the process ends, in whatever way.

    Args:
        folder: the folder.
        wait: what is waited for while another process holds the lock; without it, nothing is.

    Yields:
        The folder's open descriptor.

    Raises:
        InputError: another process holds the lock, or the folder is another user's.
    """
    check_own_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not try_lock(descriptor):
            if not wait:
                raise InputError(
                    f"{folder}: another process is running here. Wait for it to end, or choose another folder."
                )
            report(wait)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def hold_file(path: Path, holder: object) -> None:
    """Mark a file on this machine as being read, for `is_held`, while the holder lives, if its file system can."""
    with contextlib.suppress(OSError):
        descriptor = _no_pipe(str(path), os.O_RDONLY)
        weakref.finalize(holder, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_held(path: Path) -> bool:
    """Return whether a process of this machine holds a file by `hold_file`."""
    with contextlib.suppress(OSError), open_named(path) as file:
        return not try_lock(file.fileno())
    return False


def check_new_folder(path: Path) -> None:
    """Refuse the name of a folder to write that is taken.

    Raises:
        FileExistsError: by a file, or by a folder that is not empty.
        InputError: by a folder of another user, whose rights the new one would get, or by a link of one.
    """
    check_no_planted_link(path)
    is_loop = os.path.islink(os.path.realpath(path))
    if path.is_file() or is_loop or (path.is_dir() and any(path.iterdir())):
        raise FileExistsError(f"{path.absolute()}: exists and is not an empty folder. Remove it, or give another name.")
    if path.is_dir():
        check_own_folder(path)


@contextlib.contextmanager
def write_folder(path: Path, *, keep: bool = False) -> Generator[Path]:
    """Make a folder to write files to. It gets its name if the block succeeds, and is removed if the block fails.

    Until then the folder has a hidden, random name in the same parent, and nobody else can read it or write to it. A
    killed process leaves that hidden folder; the next run removes it and starts clean, unless another process is still
    writing to it.

    Args:
        path: the folder's final name.
        keep: files written before the block failed or the process was killed stay for the next run.

    Raises:
        FileExistsError: the name is taken by a file, or by a folder that is not empty.
        InputError: another process is writing this folder, or another user has made it.
        RunError: another user has moved the hidden folder away.
        OSError: the disk is full or not writable.
    """
    check_new_folder(path)
    path = Path(os.path.realpath(path))  # a folder cannot be renamed to a link
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock_staging(path, keep=keep) as (staging, descriptor):
        try:
            yield staging
            # The name is given by one call, so that a kill leaves no empty folder of it. The rights are those of any
            # new folder, or of the empty one that has the name.
            check_new_folder(path)
            with contextlib.suppress(FileExistsError):  # left by a kill
                os.mkdir(".rights", dir_fd=descriptor)
            mode = (os.stat(path) if path.exists() else os.stat(".rights", dir_fd=descriptor)).st_mode & 0o7777
            os.rmdir(".rights", dir_fd=descriptor)
            for folder, _, _ in os.walk(staging):
                sync_path(Path(folder))
            if not _is_private(staging, descriptor):
                raise RunError(f"{staging}: another user has replaced this folder. Write where others cannot.")
            os.fchmod(descriptor, mode)
            staging.rename(path)
        except BaseException:
            if not keep and _is_private(staging, descriptor):
                shutil.rmtree(staging, ignore_errors=True)
            raise
        sync_path(path.parent)


@contextlib.contextmanager
def _lock_staging(path: Path, *, keep: bool) -> Generator[tuple[Path, int]]:
    """Yield a locked hidden folder next to `path` with its descriptor: a new one, or with `keep` an earlier run's.

    Raises:
        InputError: another process of this user holds one.
    """
    random = "[0-9a-f]" * 16  # not `*`: a longer name, such as `set.v2`, has folders of its own
    for left in sorted(path.parent.glob(f".{glob.escape(path.name)}.{random}{STAGING_SUFFIX}")):
        if not _is_private(left):
            continue  # somebody else's, or a link: a random name does not meet it
        with lock_folder(left) as descriptor:
            if not _is_private(left, descriptor):
                continue  # replaced meanwhile
            if keep:
                yield left, descriptor
                return
            shutil.rmtree(left)
    staging = path.with_name(f".{path.name}.{os.urandom(8).hex()}{STAGING_SUFFIX}")
    staging.mkdir(mode=0o700)  # fails if there is anything of this name
    with lock_folder(staging) as descriptor:
        yield staging, descriptor


def _is_private(folder: Path, descriptor: int | None = None) -> bool:
    """Return whether a name is a folder, no link, that only this user can write to; and the open one, if given."""
    try:
        facts = folder.lstat()
    except FileNotFoundError:
        return False
    if descriptor is not None:
        return stat.S_ISDIR(facts.st_mode) and os.path.samestat(facts, os.fstat(descriptor))
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022


def delete_path(path: Path) -> None:
    """Delete a file or a folder; do nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
