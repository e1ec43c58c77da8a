"""Write files and folders on this machine whole or not at all; hash them, lock them, and check for free disk space.

A file is written under a temporary name in the same folder, synced, and renamed at the end: a reader never sees half
of it, and a crash leaves only temporary names behind. A lock ends when its process ends, in whatever way.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import socket
import stat
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from shards.errors import InputError
from shards.terminal.amounts import format_size
from shards.terminal.reporter import report

TMP_SUFFIX = ".tmp"
STAGING_SUFFIX = ".unfinished"


@contextlib.contextmanager
def atomic_open(path: Path) -> Generator[BinaryIO]:
    """Open a file for writing. It appears under its name when it is complete and synced to disk, or not at all.

    The temporary name is unique: processes that write the same file, on whatever hosts, do not disturb each other.

    Raises:
        InputError: the name is that of a folder, a device or a pipe, which a file of that name would replace.
        OSError: the disk is full or not writable.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path}: is not a regular file, and would be replaced. Give another file.")
    temporary = path.with_name(f".{path.name}.{unique_name()}{TMP_SUFFIX}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@functools.cache
def host_name() -> str:
    """Return this host's part of unique file names, which no other host has: its name, and a digest of its boot.

    Containers and rented nodes may share a host name and count processes from 1. After a restart of the machine the
    name is another one, so that earlier processes are not mistaken for current ones.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux
        boot = str(uuid.getnode())
    name = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname())[:32].strip("-")
    return f"{name}-{hashlib.sha256(boot.encode()).hexdigest()[:8]}"


def unique_name() -> str:
    """Return a name that no other process, host or call gives: `HOST-PID-RANDOM`."""
    return f"{host_name()}-{os.getpid()}-{os.urandom(6).hex()}"


def is_abandoned(unique: str) -> bool:
    """Return whether a `unique_name` is of a process of this host that has ended."""
    match = re.fullmatch(r"(.+)-(\d+)-[0-9a-f]{12}", unique)
    return match is not None and match[1] == host_name() and not _is_process_alive(int(match[2]))


def _is_process_alive(process: int) -> bool:
    """Return whether a process of this host is alive; one that its parent has not reaped counts as alive."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically, in UTF-8."""
    with atomic_open(path) as file:
        file.write(text.encode())


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk, so that a rename in it survives a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def hash_file(path: Path) -> str:
    """Return the hex SHA-256 of a file on disk."""
    with path.open("rb") as file:
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
            found = f"{format_size(free)} are free, {format_size(total - free)} too few"
            problems.append(f"disk: needs {format_size(total)} ({parts}); {found}. Free some. {remedy}")
    if problems:
        raise InputError(problems)


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


@contextlib.contextmanager
def lock_folder(folder: Path, *, wait: str = "") -> Generator[None]:
    """Lock a folder on this machine for this process. The lock ends when the process ends, in whatever way.

    Args:
        folder: the folder.
        wait: what is waited for while another process holds the lock; without it, nothing is.

    Raises:
        InputError: another process holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if not wait:
                message = f"{folder}: another process is at work here. Wait for it to end, or choose another folder."
                raise InputError(message) from error
            report(wait)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_new_folder(path: Path) -> None:
    """Refuse the name of a folder to write that is taken.

    Raises:
        FileExistsError: by a file, or by a folder that is not empty.
    """
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise FileExistsError(f"{path.absolute()}: exists and is not empty. Remove it, or give another folder.")


@contextlib.contextmanager
def write_folder(path: Path, *, unfinished: Literal["remove", "keep"] = "remove") -> Generator[Path]:
    """Make a folder to write files to. It gets its name if the block succeeds, and is removed if the block fails.

    Until then the folder has a hidden name in the same parent, and nobody else can read it or write to it. A killed
    process leaves that hidden folder; the next run removes it and starts clean, unless another process is still writing
    to it.

    Args:
        path: the folder's final name.
        unfinished: with "keep", files written before the block failed or the process was killed stay for the next run.

    Raises:
        FileExistsError: the name is taken by a file, or by a folder that is not empty.
        InputError: another process is writing this folder, or the hidden name is taken by another user.
        OSError: the disk is full or not writable.
    """
    path = Path(os.path.realpath(path))  # a folder cannot be renamed to a link
    check_new_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}{STAGING_SUFFIX}")
    _make_private(staging)
    with lock_folder(staging):
        if unfinished == "remove":
            _empty(staging)
        try:
            yield staging
            # All of it is on disk before the folder gets its name, and the rights of any new folder.
            for folder, _, _ in os.walk(staging):
                sync_folder(Path(folder))
            path.mkdir(exist_ok=True)
            staging.chmod(path.stat().st_mode & 0o7777)
            try:
                staging.rename(path)
            except OSError:
                path.rmdir()
                raise
        except BaseException:
            if unfinished == "remove":
                shutil.rmtree(staging, ignore_errors=True)
            raise
        sync_folder(path.parent)


def _make_private(folder: Path) -> None:
    """Make a folder that only this user can use, unless an earlier run of this user has left it.

    Raises:
        InputError: the name is taken by something else, such as a link or another user's folder.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError as error:
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            message = f"{folder}: is not a folder of this user alone, so it is not used. Remove it."
            raise InputError(message) from error


def _empty(folder: Path) -> None:
    """Remove the files that a killed process left. The folder itself stays, since it is locked."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def delete_path(path: Path) -> None:
    """Delete a file or a folder; do nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
