"""An attempt: one run of a task, in a folder that no other attempt has, and its publication.

A task may run twice, on two hosts at the same time: a node that was given up may still be at work. So an attempt has a
unique name, writes where no other one writes, and deletes nothing of another one. Its files are written before its
receipt: a task's folder is whole or has no receipt. The first attempt that finishes wins. A later one compares its
files with those: if they are equal it drops its own, else it raises.

An attempt's files go to a folder of its name in the task's folder, and the receipt, created only if there is none, says
which attempt's files count.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from pipeline.engine.checksums import seal, seal_checksums
from pipeline.engine.receipts import CHECKSUMS_FILE, RECEIPT_FILE, Result, load_receipt
from shards.errors import RunError
from shards.stores.files import TMP_SUFFIX, check_own_folder, delete_path, is_abandoned, sync_path, unique_name
from shards.stores.store import WritableStore
from shards.terminal.workers import map_in_threads

UPLOADS_AT_ONCE = 3
"""Files of one task that are sent to a remote store at the same time."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a task."""

    name: str
    """The name that no other attempt has."""
    label: str
    """The task's name for a person."""
    folder: Path
    """The folder on this machine that the task writes to."""
    home: WritableStore
    """The task's folder in the work folder; it is named by the digest."""
    outputs: WritableStore | None
    """Where the files of the result go; the task's own folder when None."""
    in_scratch: bool
    """Whether that folder is not beside the files' place."""


def default_scratch() -> Path:
    """Return the scratch folder of attempts if none is chosen: this user's, among the system's temporary files."""
    return Path(tempfile.gettempdir()) / f"tokenmill-{os.getuid()}"


@contextlib.contextmanager
def open_attempt(
    stage: WritableStore, outputs: WritableStore | None, scratch: str | None, *, digest: str, label: str
) -> Generator[Attempt]:
    """Make an attempt's folder; delete it at the end if it is there.

    Args:
        stage: the stage's folder in the work folder.
        outputs: where the files of the result go; the task's own folder when None.
        scratch: the folder of the running machine where the task writes; None: next to its files, or else in the
            system's folder for temporary files.
        digest: the task's.
        label: the task's name for a person.
    """
    near = (store.folder for store in (outputs, stage) if store is not None and store.folder is not None)
    place = Path(scratch) if scratch is not None else next(near, None)
    if place is None:  # a name that anybody can take
        place = default_scratch()
        place.mkdir(mode=0o700, exist_ok=True)
        check_own_folder(place)
    if stage.folder is None or scratch is not None:
        delete_abandoned_attempts(place)  # of this host, whose scratch the driver may not see
    name = unique_name()
    folder = place / f".{digest}.{name}{TMP_SUFFIX}"
    place.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o755)  # others cannot write there, whatever the umask
    try:
        yield Attempt(name, label, folder, stage.child(digest), outputs, scratch is not None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish_attempt(attempt: Attempt, result: Result) -> None:
    """Give an attempt's files their place, the receipt last; the result gets what the receipt says of both.

    Raises:
        RunError: another attempt has finished with other files.
    """
    # In the set's folder a file has one name, whoever wrote it.
    if attempt.outputs is not None and _is_second(attempt, result):
        return
    result.attempt = attempt.name
    checksums = seal_checksums(result.files)
    target = attempt.outputs
    if target is None:
        result.folder = attempt.name
        target = attempt.home.child(attempt.name)

    def move(name: str) -> None:
        path, written = attempt.folder / name, result.files[name]
        if target.folder is None or attempt.in_scratch:
            written.version = target.put(name, path)
            return
        sync_path(path)
        target.folder.mkdir(parents=True, exist_ok=True)
        written.version = str(path.replace(target.folder / name).stat().st_mtime_ns)

    # To a remote store several at once, as each waits for answers; the receipt comes after all of them.
    map_in_threads(move, list(result.files), UPLOADS_AT_ONCE if target.request_bytes else 1)
    if target.folder is not None and result.files:
        sync_path(target.folder)
    if checksums:
        attempt.home.put(f"{attempt.name}/{CHECKSUMS_FILE}", checksums)
    # Creating the receipt says which attempt is the first.
    if attempt.home.create(RECEIPT_FILE, seal(result)):
        if attempt.home.folder is not None:
            delete_abandoned_attempts(attempt.home.folder)
    else:
        attempt.home.child(attempt.name).delete_all()
        _is_second(attempt, result)


def _is_second(attempt: Attempt, result: Result) -> bool:
    """Return whether another attempt at the task has finished, with the same files.

    Raises:
        RunError: it has other files.
    """
    first = load_receipt(attempt.home)
    if first is None:
        return False
    if different := sorted({name for name, _ in _list_contents(first) ^ _list_contents(result)}):
        raise RunError(
            f"{attempt.label} ran twice and gave different files: {', '.join(different[:3])}. Attempts: "
            f"{first.attempt} and {attempt.name}. The source changed while it was read, or the memory of a host is "
            "failing. The files of the first attempt are kept."
        )
    return True


def _list_contents(result: Result) -> set[tuple[str, str]]:
    """Return the name and the checksum of each file of an attempt's result, by which attempts are compared."""
    return {
        # Without a receipt yet, the checksums are those of the blocks.
        (name, file.sha256 or file.xxh3_128 if file.checksums is None else xxhash.xxh3_128_hexdigest(file.checksums))
        for name, file in result.files.items()
    }


def delete_abandoned_attempts(folder: Path) -> None:
    """Delete what attempts of this host left in a stage's or a task's folder whose process has ended.

    Those of other hosts may be at work.
    """
    for path in folder.glob("*"):
        if any(map(is_abandoned, path.name.split("."))):
            delete_path(path)
