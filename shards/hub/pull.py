"""Pull a set from the Hub into a folder on disk. The folder appears whole and verified, or not at all.

The files that the manifest names are fetched at one commit, by ranges, into a hidden folder next to the new one that
only this user can read: never more bytes than the Hub lists. Each file is then hashed and compared with the manifest. A
file that differs is fetched once more, then refused by name. A stopped pull leaves the hidden folder; the next pull to
the same folder hashes what is there and continues, also within a file.

Costs one read of every file for its hash. Memory does not grow with the set.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shards.errors import Problem, ShardSetError
from shards.format.manifest import MANIFEST_FILE
from shards.format.reader import ShardSet
from shards.format.shard import compare_digest, compare_sizes
from shards.hub.push import SetFile, batch_files, count_bytes, list_files
from shards.stores.files import check_new_folder, check_room, delete_path, hash_file, no_follow, sync_path, write_folder
from shards.stores.hub_store import HubAddress, HubStore, open_hub
from shards.stores.store import FolderStore
from shards.terminal.reporter import Progress
from shards.terminal.workers import map_in_threads
from shards.validation.files import require_whole

CONNECTIONS = 8
"""Files fetched or hashed at once: one connection seldom uses the full bandwidth."""


def pull(address: HubAddress, out: Path, *, progress: Progress) -> dict[str, Any]:
    """Fetch a set from the Hub into a new folder.

    Args:
        address: the address of the set. All files are read at the commit that the revision names at the start.
        out: the folder. It is absent or empty, or it holds this very set; then nothing is fetched.
        progress: called as files are verified.

    Returns:
        commit: the commit that was read.
        files, bytes: of the set, the manifest included.
        was_there: whether the folder held the whole set already; it was verified again.

    Raises:
        ShardSetError: there is no valid manifest, or a file is missing or has other bytes than the manifest says, on
            the Hub or in the folder.
        StoreError: the Hub cannot be read.
        OSError: the folder is taken, or the disk is full.
    """
    held = out / MANIFEST_FILE
    if not held.is_file():  # before the Hub is asked, which may take long to answer
        check_new_folder(out)
    store = open_hub(address)
    there = ShardSet(store)
    digests = {**there.manifest.digests, MANIFEST_FILE: there.manifest_sha256}
    was_there = held.is_file() and hash_file(held) == there.manifest_sha256
    if was_there:
        require_whole(FolderStore(out))
        files = list_files(out)
        if wrong := _find_wrong(files, f"Remove {out}, and pull it again."):
            raise ShardSetError(wrong)
    else:
        if problems := compare_sizes(store, there.manifest):
            raise ShardSetError(problems)
        with write_folder(out, keep=True) as staging:
            files = [SetFile(name, store.size(name), sha256, staging / name) for name, sha256 in digests.items()]
            total, done = count_bytes(files), 0
            own = {path for file in files for path in (file.path, _part(file))}
            for path in staging.iterdir():  # of an earlier pull of another commit
                if path not in own or path.is_symlink():
                    delete_path(path)
            kept = sum(path.stat().st_size for path in staging.iterdir())
            check_room([("the set", staging.parent, total - kept)], "Or pull elsewhere.")
            for batch in batch_files(files):
                _fetch(store, batch)
                done += count_bytes(batch)
                progress(done, total)
            require_whole(FolderStore(staging))
    return {"commit": store.commit, "files": len(files), "bytes": count_bytes(files), "was_there": was_there}


def _fetch(store: HubStore, batch: Sequence[SetFile]) -> None:
    """Fetch and verify the files of a batch that the hidden folder of a pull lacks.

    Raises:
        ShardSetError: the bytes of a file differed from the manifest twice.
    """
    wrong: list[Problem] = []
    for _ in range(2):
        map_in_threads(partial(_download, store), [file for file in batch if not file.path.exists()], CONNECTIONS)
        wrong = _find_wrong(batch, "It was fetched twice. Push the set again.")
        if not wrong:
            return
        for problem in wrong:
            delete_path(batch[0].path.with_name(problem.where))
    raise ShardSetError(wrong)


def _part(file: SetFile) -> Path:
    """Return where the beginning of a file to pull is; files may have equal content, or names of 255 bytes."""
    return file.path.with_name(f".{hashlib.sha256(f'{file.sha256} {file.name}'.encode()).hexdigest()}")


def _download(store: HubStore, file: SetFile) -> None:
    """Fetch a file at the store's commit; what is there of the same content is its beginning."""
    part = _part(file)
    with open(part, "ab", opener=no_follow) as opened:
        for start in range(opened.tell(), file.bytes, store.request_bytes):
            opened.write(store.read_range(file.name, start, min(start + store.request_bytes, file.bytes)))
    part.replace(file.path)


def _find_wrong(files: Sequence[SetFile], remedy: str) -> list[Problem]:
    """Hash pulled files and sync them to disk; return a problem for each that is not what the manifest says."""

    def check(file: SetFile) -> list[Problem]:
        sync_path(file.path)
        return compare_digest(file.name, file.sha256, hash_file(file.path), remedy=remedy)

    return [problem for problems in map_in_threads(check, files, CONNECTIONS) for problem in problems]
