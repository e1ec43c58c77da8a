"""Pull: a set on the Hub becomes a folder on disk, which appears whole and verified, or not at all.

Every file is hashed as it lies on disk and compared with the manifest; one that is not what the manifest says is
fetched once more, then refused by name. What a stopped pull has fetched stays in the hidden folder beside (half files
too) and is taken up, after it has been hashed, by the next one to the same folder. Only files that the manifest names
are fetched, under plain names in the set's own folder, and no more bytes of them than it says.

What fails in a way that may pass (a broken connection, a busy server) is asked for again after growing waits, each
piece of a file by itself.

Cost: a read of every file for its hash; memory does not grow with the set.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Lock

from shards.errors import Problem, ShardSetError
from shards.format.manifest import MANIFEST_FILE, MAX_METADATA_BYTES, Manifest
from shards.stores.files import atomic_open, hash_file, stage_folder, sync_folder
from shards.stores.hub import HubFile, HubFolder, read_manifest
from shards.stores.hub_client import Address, HubError, Listing, find_missing, list_set, set_files, shorten
from shards.stores.retry import keep_trying
from shards.validation.files import check_structure

PART_SUFFIX = ".part"
CONNECTIONS = 4
"""Files fetched at once: one connection seldom fills the line, and hashing takes a core beside."""

PIECE_BYTES = 32 << 20
"""Asked for at once: half files are kept in pieces of this size, and each connection holds one in memory."""

WAIT_SECONDS = 30.0
"""How often a set whose push has not finished is looked at again."""

Progress = Callable[[int, int], None]
"""Called with the bytes that are on disk and verified, and those of all files, by one thread at a time."""

Note = Callable[[str], None]
"""Called with a sentence for the user, by any thread."""


@dataclass(slots=True)
class Pulled:
    """What a pull did."""

    path: Path
    commit: str = ""
    names: list[str] = field(default_factory=list[str])
    """The files, in the order in which they were verified."""
    bytes: int = 0
    fetched_bytes: int = 0
    """What came over the network; the rest had been fetched by an earlier pull, and was found good."""
    refetched: list[str] = field(default_factory=list[str])
    """Files that came with other bytes at first."""
    was_there: bool = False
    """The whole set had been pulled before; it was verified again."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to have: its name, size and SHA-256."""

    name: str
    bytes: int
    sha256: str


def pull(
    address: Address,
    out: Path,
    *,
    when_missing: str = "stop",
    progress: Progress | None = None,
    note: Note = lambda text: None,
    wait_seconds: float = WAIT_SECONDS,
) -> Pulled:
    """Fetch a set into a new folder.

    Args:
        address: where it is; a revision that moves is read at the commit where it stands at the start.
        out: the folder; it must not be there, or be empty, or hold this very set whole: then nothing is fetched.
        when_missing: "stop" where shards are not on the Hub yet, once the others are fetched; or "wait" for them.
        progress: called as files are verified.
        note: called with what is waited for, and what went wrong and is tried again.
        wait_seconds: how often to look again when waiting.

    Raises:
        ShardSetError: there is no valid manifest; a file has other bytes than it says, twice; shards are missing; or
            the folder holds this set, and a file there is not what the manifest says.
        HubError: the Hub cannot be read.
        OSError: the folder is taken, or the disk is full.
    """
    folder = HubFolder(address, keep_trying(lambda: list_set(address), note=note))
    manifest = keep_trying(lambda: read_manifest(folder), note=note)
    done = Pulled(out, folder.commit)
    if _stands(folder, out):
        return _verify(manifest, done, progress)
    with stage_folder(out, unfinished="keep") as staging:
        while True:
            wanted = list_wanted(manifest, folder.listing)
            _check_room(staging, wanted)
            _fetch_all(folder, wanted, staging, done, progress, note)
            missing = find_missing(manifest, folder.listing)
            if not missing:
                break
            if when_missing == "stop":
                raise ShardSetError(shorten(missing))
            note(f"{len(missing)} shards are not there yet; looking again every {wait_seconds:.0f} s")
            time.sleep(wait_seconds)
            keep_trying(folder.look_again, note=note)
        content = keep_trying((folder / MANIFEST_FILE).read_bytes, note=note)
        _remove_others(staging, {file.name for file in wanted})
        with atomic_open(staging / MANIFEST_FILE) as file:
            file.write(content)
        problems = check_structure(staging).problems
        if problems:
            raise ShardSetError(problems)
    done.commit, done.bytes = folder.commit, done.bytes + len(content)
    done.names.append(MANIFEST_FILE)
    return done


def list_wanted(manifest: Manifest, listing: Listing) -> list[Wanted]:
    """Return the files to fetch, of those that are on the Hub.

    Raises:
        ShardSetError: the Hub has one of another size, or another SHA-256, than the manifest says: nothing is fetched.
    """
    wanted: list[Wanted] = []
    problems: list[Problem] = []
    for name, size, sha256 in set_files(manifest):
        found = listing.files.get(name)
        if found is None:
            continue
        expected = found.bytes if size is None else size
        if found.bytes != expected or (size is None and expected > MAX_METADATA_BYTES):
            most = f"at most {MAX_METADATA_BYTES}" if size is None else f"{size} by the manifest"
            message = f"{found.bytes} bytes on the Hub; expected {most}. Push it again."
            problems.append(Problem("file_size", name, message))
        elif found.sha256 not in (None, sha256):
            message = f"sha256 is {found.sha256} on the Hub; expected {sha256} by the manifest. Push it again."
            problems.append(Problem("file_checksum", name, message))
        wanted.append(Wanted(name, expected, sha256))
    if problems:
        raise ShardSetError(shorten(problems))
    return wanted


def _stands(folder: HubFolder, out: Path) -> bool:
    """Say whether a folder holds this very set, by its manifest."""
    manifest = out / MANIFEST_FILE
    return manifest.is_file() and folder.listing.files[MANIFEST_FILE].holds(hash_file(manifest), manifest)


def _verify(manifest: Manifest, done: Pulled, progress: Progress | None) -> Pulled:
    """Verify what stands in the folder already; a pull changes nothing there.

    Raises:
        ShardSetError: it is not whole.
    """
    problems, files = check_structure(done.path).problems, set_files(manifest)
    total = sum(size or 0 for _, size, _ in files)
    for name, _, sha256 in [] if problems else files:
        found = hash_file(done.path / name)
        if found != sha256:
            message = f"sha256 is {found}; expected {sha256} by the manifest. Remove {done.path}, and pull it again."
            problems.append(Problem("file_checksum", name, message))
        done.names.append(name)
        done.bytes += (done.path / name).stat().st_size
        if progress is not None:
            progress(min(done.bytes, total), total)
    if problems:
        raise ShardSetError(shorten(problems))
    done.names.append(MANIFEST_FILE)
    done.bytes += (done.path / MANIFEST_FILE).stat().st_size
    done.was_there = True
    return done


def _check_room(staging: Path, wanted: list[Wanted]) -> None:
    kept = sum(entry.stat().st_size for entry in os.scandir(staging) if entry.is_file(follow_symlinks=False))
    needed, free = sum(file.bytes for file in wanted) - kept, shutil.disk_usage(staging).free
    if needed > free:
        message = f"{needed:,} bytes are to come, {free:,} are free. Make room, or pull elsewhere."
        raise OSError(f"{staging.parent}: {message}")


def _fetch_all(
    folder: HubFolder, wanted: list[Wanted], staging: Path, done: Pulled, progress: Progress | None, note: Note
) -> None:
    """Have every wanted file in the staging folder; adds to what `done` counts."""
    lock, stop, total = Lock(), Event(), sum(file.bytes for file in wanted)

    def fetch(file: Wanted) -> None:
        fetched_bytes, again = _have(folder / file.name, file, staging, stop, note)
        with lock:
            done.names.append(file.name)
            done.bytes += file.bytes
            done.fetched_bytes += fetched_bytes
            done.refetched += [file.name] if again else []
            if progress is not None:
                progress(done.bytes, total)

    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="pull") as pool:
        futures = [pool.submit(fetch, file) for file in wanted if file.name not in done.names]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _have(remote: HubFile, file: Wanted, staging: Path, stop: Event, note: Note) -> tuple[int, bool]:
    """Make a file lie in the staging folder, verified; return the bytes fetched and whether they were wrong at first.

    Raises:
        ShardSetError: its bytes are others than the manifest says, twice.
    """
    # By its own name too: files of equal bytes are fetched at once, each to a half file of its own.
    path, part = staging / file.name, staging / f"{file.name}.{file.sha256}{PART_SUFFIX}"
    if path.is_file() and path.stat().st_size == file.bytes and hash_file(path) == file.sha256:
        return 0, False
    fetched = 0
    for again in (False, True):
        fetched += _download(remote, file, part, stop, note)
        found = hash_file(part)
        if found == file.sha256:
            part.replace(path)
            sync_folder(staging)
            return fetched, again
        part.unlink()
    message = f"came twice with sha256 {found}; expected {file.sha256} by the manifest. Push it again, or ask who did."
    raise ShardSetError([Problem("file_checksum", file.name, message)])


def _download(remote: HubFile, file: Wanted, part: Path, stop: Event, note: Note) -> int:
    """Fetch what half a file lacks, and sync it; return how many bytes came."""

    def fetch(start: int) -> bytes:
        if stop.is_set():
            raise HubError(f"{remote}: left, since another file could not be had")
        return remote.read_range(start, min(start + PIECE_BYTES, file.bytes))

    with part.open("ab") as out:
        if out.tell() > file.bytes:
            out.truncate(0)
        start = have = out.tell()
        while have < file.bytes:
            piece = keep_trying(partial(fetch, have), note=note, sleep=stop.wait)
            out.write(piece)
            have += len(piece)
        out.flush()
        os.fsync(out.fileno())
    return have - start


def _remove_others(staging: Path, names: set[str]) -> None:
    """Remove what an earlier pull left of another commit."""
    for path in staging.iterdir():
        if path.name in names:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
