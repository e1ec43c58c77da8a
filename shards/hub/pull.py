"""Pull a set from the Hub into a folder on disk. The folder appears whole and verified, or not at all.

Every file is hashed on disk and compared with the manifest. A file that differs is fetched once more, then refused by
name. The files of a stopped pull, partial ones too, stay in a hidden folder next to the new one; the next pull to the
same folder hashes them and continues. Only files that the manifest names are fetched,
under plain names in the set's folder, and no more bytes than it says.

The store retries each request, so each piece of a file separately.

Costs one read of every file for its hash. Memory does not grow with the set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from shards.errors import Problem, ShardSetError, plural, set_error
from shards.format.manifest import MANIFEST_FILE, MAX_METADATA_BYTES, Manifest
from shards.format.reader import ShardSet
from shards.stores.address import HubAddress
from shards.stores.files import (
    atomic_open,
    check_new_folder,
    check_room,
    delete_path,
    hash_file,
    sync_folder,
    write_folder,
)
from shards.stores.hub_store import HubStore, open_hub
from shards.stores.retry import stop_on
from shards.stores.store import FolderStore
from shards.terminal.reporter import Advance, Progress, no_progress
from shards.terminal.workers import call_until_failure
from shards.validation.files import check_files, require_whole

PART_SUFFIX = ".part"
CONNECTIONS = 4
"""Files fetched at once: one connection seldom uses the full bandwidth, and hashing takes a core meanwhile."""

PIECE_BYTES = 32 << 20
"""Bytes of one request. A partial file is a whole number of these, and each connection holds one in memory."""

MOST_PROBLEMS = 10
"""Problems that are named one by one; the others are counted."""


@dataclass
class Pulled:
    """The result of a pull."""

    path: Path
    commit: str = ""
    names: list[str] = field(default_factory=list[str])
    """The files, in the order in which they were verified."""
    bytes: int = 0
    fetched_bytes: int = 0
    """Bytes fetched over the network; an earlier pull fetched the rest."""
    refetched: list[str] = field(default_factory=list[str])
    """Files that were fetched twice, because their bytes were wrong the first time."""
    was_there: bool = False
    """True if the folder held the whole set already; it was verified again."""

    def add(self, name: str, size: int) -> None:
        """Count a file that is verified."""
        self.names.append(name)
        self.bytes += size


def pull(address: HubAddress, out: Path, *, give_up_s: float | None = None, progress: Progress = no_progress) -> Pulled:
    """Fetch a set into a new folder.

    Args:
        address: the address of the set. All files are read at the commit that the revision names at the start.
        out: the folder. It is absent or empty, or it holds this very set; then nothing is fetched.
        give_up_s: seconds for which a failed request is retried; `shards.stores.retry.GIVE_UP_S` when None.
        progress: called as files are verified, by one thread at a time.

    Raises:
        ShardSetError: there is no valid manifest; a file is missing or has other bytes than the manifest says, twice;
            or the folder holds this set, and a file there is not what the manifest says.
        StoreError: the Hub cannot be read.
        OSError: the folder is taken, or the disk is full.
    """
    if not (out / MANIFEST_FILE).is_file():  # before the Hub is asked, which may take long to answer
        check_new_folder(out)
    store = open_hub(address, give_up_s=give_up_s)
    manifest = ShardSet(store).manifest
    done = Pulled(out, store.commit)
    # A folder that holds this very set, by its manifest, is verified.
    held = out / MANIFEST_FILE
    if held.is_file() and store.files[MANIFEST_FILE].holds(hash_file(held), held):
        _verify(manifest, done, progress)
        return done
    check_listing(manifest, store)
    with write_folder(out, unfinished="keep") as staging:
        # What an earlier pull has left of this commit counts as room that is taken already; the rest goes.
        digests = manifest.digests
        own = {*digests, *(f"{name}.{sha256}{PART_SUFFIX}" for name, sha256 in digests.items())}
        kept = 0
        for path in staging.iterdir():
            if path.name not in own:
                delete_path(path)
            elif not path.is_symlink():
                kept += path.stat().st_size
        total = sum(map(store.size, digests))
        check_room([("the set", staging.parent, total - kept)], "Or pull elsewhere.")
        _fetch_all(store, digests, staging, done, lambda fetched: progress(fetched, total))
        # The manifest comes last, when every file that it names is there.
        content = store.read(MANIFEST_FILE)
        with atomic_open(staging / MANIFEST_FILE) as file:
            file.write(content)
        require_whole(FolderStore(staging))
    done.add(MANIFEST_FILE, len(content))
    return done


def check_listing(manifest: Manifest, store: HubStore) -> None:
    """Compare the Hub's listing with a manifest, before anything is fetched.

    Raises:
        ShardSetError: the Hub lacks a file, or has it with a size or SHA-256 that differs from the manifest.
    """
    sizes = {file.path: file.bytes for file in manifest.files}
    problems: list[Problem] = []
    for name, sha256 in manifest.digests.items():
        found = store.files.get(name)
        if found is None:
            message = f"not in {store} at commit {store.commit[:12]}: the set there is not whole. Push it again."
            problems.append(Problem("file_missing", name, message))
        elif name in sizes and found.bytes != sizes[name]:
            message = f"{found.bytes} bytes on the Hub; expected {sizes[name]} by the manifest. Push it again."
            problems.append(Problem("file_size", name, message))
        elif name not in sizes and found.bytes > MAX_METADATA_BYTES:  # the manifest states no size of these
            message = f"{found.bytes} bytes on the Hub; expected at most {MAX_METADATA_BYTES}. Push it again."
            problems.append(Problem("file_size", name, message))
        elif found.sha256 not in (None, sha256):
            message = f"sha256 is {found.sha256} on the Hub; expected {sha256} by the manifest. Push it again."
            problems.append(Problem("file_checksum", name, message))
    if problems:
        raise ShardSetError(_shorten(problems))


def _shorten(problems: list[Problem]) -> list[Problem]:
    """Return the first problems, and one that counts the others."""
    if len(problems) <= MOST_PROBLEMS + 1:
        return problems
    rest = problems[MOST_PROBLEMS:]
    message = f"and {plural(len(rest) - 1, 'more file')}, to {rest[-1].where}, have problems too: {rest[0].message}"
    return [*problems[:MOST_PROBLEMS], Problem(rest[0].kind, rest[0].where, message)]


def _verify(manifest: Manifest, done: Pulled, progress: Progress) -> None:
    """Hash a set that the folder holds already. Nothing in it is changed.

    Raises:
        ShardSetError: the set is not whole.
    """
    problems = check_files(FolderStore(done.path)).problems
    if not problems:
        sizes = {name: (done.path / name).stat().st_size for name in manifest.digests}
        for name, sha256 in manifest.digests.items():
            if (found := hash_file(done.path / name)) != sha256:
                remedy = f"Remove {done.path}, and pull it again."
                problems.append(
                    Problem("file_checksum", name, f"sha256 is {found}; expected {sha256} by the manifest. {remedy}")
                )
            done.add(name, sizes[name])
            progress(done.bytes, sum(sizes.values()))
    if problems:
        raise ShardSetError(_shorten(problems))
    done.add(MANIFEST_FILE, (done.path / MANIFEST_FILE).stat().st_size)
    done.was_there = True


def _fetch_all(store: HubStore, digests: Mapping[str, str], staging: Path, done: Pulled, progress: Advance) -> None:
    """Fetch every file that the staging folder lacks, and add to the counts of `done`."""
    stop = Event()

    def fetch(name: str) -> tuple[str, int, bool]:
        with stop_on(stop):
            return name, *_ensure_file(store, name, digests[name], staging)

    def count(fetched: tuple[str, int, bool]) -> None:
        name, fetched_bytes, again = fetched
        done.add(name, store.size(name))
        done.fetched_bytes += fetched_bytes
        done.refetched += [name] if again else []
        progress(done.bytes)

    # If one file fails, the other threads stop at their next request.
    call_until_failure(fetch, digests, count, threads=CONNECTIONS, stop=stop)


def _ensure_file(store: HubStore, name: str, sha256: str, staging: Path) -> tuple[int, bool]:
    """Fetch and verify a file unless the staging folder has it; return the bytes fetched and whether it took two tries.

    Raises:
        ShardSetError: its bytes differed from the manifest twice.
    """
    # The partial file's name has the file's name too: two files with equal bytes may be fetched at once.
    path, part = staging / name, staging / f"{name}.{sha256}{PART_SUFFIX}"
    size = store.size(name)
    if path.is_file() and path.stat().st_size == size and hash_file(path) == sha256:
        return 0, False
    fetched = 0
    for again in (False, True):
        # The rest of a partial file.
        with part.open("ab") as out:
            if out.tell() > size:
                out.seek(out.truncate(0))  # truncating moves no position
            start = end = out.tell()
            while end < size:
                out.write(store.read_range(name, end, min(end + PIECE_BYTES, size)))
                end = out.tell()
            out.flush()
            os.fsync(out.fileno())
        fetched += end - start
        found = hash_file(part)
        if found == sha256:
            part.replace(path)
            sync_folder(staging)
            return fetched, again
        part.unlink()
    message = f"fetched twice, with sha256 {found}; expected {sha256} by the manifest. Push the set again."
    raise set_error("file_checksum", name, message)
