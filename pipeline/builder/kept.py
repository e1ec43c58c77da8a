"""What a work folder keeps of the set that was published before the current one, within a budget; `tokenmill prune`.

Going back to an earlier recipe then finds its tokenizer, its runs and its shards. Before shards in the output folder
are replaced, they are linked into the folders of the tasks that wrote them, which takes no room until then. If the two
folders are on different disks, or in a bucket, shards are not kept, and are written again from the runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from pipeline.builder.records import ORDER, read_records, write_records
from pipeline.builder.running_build import RunningBuild
from pipeline.engine.checksums import WrittenFile
from pipeline.engine.lease import Lease
from pipeline.engine.receipts import WorkFileDamagedError, load_receipt
from pipeline.engine.tasks import Task
from shards.errors import InputError, plural
from shards.format.manifest import MANIFEST_FILE
from shards.stores.files import TMP_SUFFIX, delete_path, lock_folder, sync_folder, unique_name
from shards.stores.store import ListedFile, WritableStore
from shards.terminal.amounts import format_amount

KEPT_BYTES = 50 * 10**9
"""The most disk that the results of the set before may take, by default."""
_STAGE = "assemble"


def link_shards(build: RunningBuild, tasks: Iterable[Task]) -> None:
    """Keep the shards of the last published set, before other tasks replace them: a second name of each file."""
    out, work = build.out.folder, build.work.folder
    if out is None or work is None or not build.records.sets or not build.keep_bytes:
        return
    # Shards of a task that the new set has, too, stay where they are.
    asked = {task.digest for task in tasks}
    for digest in build.records.sets[0].used.get(_STAGE, []):
        for name, file in _files_of(build, digest).items() if digest not in asked else ():
            kept = work / _STAGE / digest / name
            if _is_whole(out / name, file) and not _is_whole(kept, file):
                kept.unlink(missing_ok=True)
                try:
                    os.link(out / name, kept)
                except OSError:  # another disk, or one without links
                    return


def find_linked(build: RunningBuild, tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks whose shards are kept whole, and are not whole in the output folder."""
    out, work = build.out.folder, build.work.folder
    if out is None or work is None:
        return []
    found: list[Task] = []
    for task in tasks:
        files = _files_of(build, task.digest).items()
        kept = all(_is_whole(work / _STAGE / task.digest / name, file) for name, file in files)
        if files and kept and not all(_is_whole(out / name, file) for name, file in files):
            found.append(task)
    return found


def put_back(build: RunningBuild, tasks: list[Task], linked: list[Task]) -> None:
    """Give the kept shards of `linked` tasks their place in the output folder, whose manifest is deleted first.

    Those of other tasks than `tasks` that they replace are kept.
    """
    out, work = build.out.folder, build.work.folder
    if not linked or out is None or work is None:
        return
    link_shards(build, tasks)
    # From here on, until the next manifest, the output folder is no set.
    build.out.delete(MANIFEST_FILE)
    for task in linked:
        for name in _files_of(build, task.digest):
            # The kept name stays, so that a build that is killed here loses nothing.
            temporary = out / f".{name}.{unique_name()}{TMP_SUFFIX}"
            os.link(work / _STAGE / task.digest / name, temporary)
            temporary.replace(out / name)
            temporary.unlink(missing_ok=True)  # a rename to another name of the same file leaves both
    sync_folder(out)
    build.say(f"assemble: put the shards of {plural(len(linked), 'task')} back, which an earlier build here wrote")


def prune_unused(build: RunningBuild) -> None:
    """Delete from the work folder of a published set what it does not use, and attempts that were lost.

    Of the set before this one as many stages are kept as the budget has room for.
    """
    # The stages in their order: the first ones cost the most to run again.
    earlier = next((one for one in build.records.sets if one.manifest != build.manifest), None)
    room = build.keep_bytes
    for stage in (stage for stage in ORDER if stage in build.used):
        store, own = build.work.child(stage), build.used[stage]
        used = set(own)
        if earlier is not None:
            kept = set(earlier.used.get(stage, [])) - own
            size = sum(file.bytes for file in store.list() if _task_of(file) in kept)
            if size <= room:
                room -= size
                used |= kept
            else:
                sizes = f"{format_amount(size, 'bytes')}, more than the {format_amount(room, 'bytes')}"
                build.note(f"{stage}: the results of the set before are not kept: {sizes} that --keep leaves")

        def is_lost(file: ListedFile, stage: str = stage) -> bool:
            """Return whether a file of a task in use is of an attempt that does not count."""
            task, _, rest = file.name.partition("/")
            attempt, _, inner = rest.partition("/")
            result = build.driver.result_of(stage, task)
            return bool(inner) and result is not None and attempt != result.attempt

        # Files that are published one by one may be of an attempt that another one has overtaken.
        has_attempts = store.folder is None or build.driver.scratch is not None
        _prune_stage(store, used, is_lost if has_attempts else None)


def prune_work(work: WritableStore, *, dry_run: bool) -> list[dict[str, Any]]:
    """Remove from a work folder what the last published set did not use.

    Returns:
        The stages of which something was removed, each with its `tasks` and `bytes`.

    Raises:
        InputError: no set was published from this folder.
        InputError: a build is at work there.
    """
    holding = nullcontext() if dry_run else lock_folder(work.folder) if work.folder else closing(Lease(work))
    if work.folder is not None and not work.folder.is_dir():
        raise InputError(f"{work}: no such folder. Give the work folder of a build (--work), by default OUT.work.")
    with holding:
        records = read_records(work)
        if not records.sets:
            raise InputError(
                f"{work}: no set is known that was published from here, so nothing is known to be unused. Run the "
                "build to its end, or delete the folder."
            )
        used = records.sets[0].used
        # What is not listed as used is of a set before, or of builds that have not published.
        removed: list[dict[str, Any]] = []
        for stage in ORDER:
            store, own = work.child(stage), set(used.get(stage, []))
            unused = [file for file in store.list() if _task_of(file) not in own]
            tasks = {_task_of(file) for file in unused if "/" in file.name}
            if size := sum(file.bytes for file in unused):
                removed.append({"stage": stage, "tasks": len(tasks), "bytes": size})
            if not dry_run:
                _prune_stage(store, own)
        if not dry_run:
            records.sets = records.sets[:1]
            write_records(work, records)
    return removed


def _prune_stage(store: WritableStore, used: set[str], is_lost: Callable[[ListedFile], bool] | None = None) -> None:
    """Delete the files of tasks that are not in use, and the lost ones of the others."""
    if store.folder is None or is_lost:
        for file in list(store.list()):
            if _task_of(file) not in used or (is_lost and is_lost(file)):
                store.delete(file.name)
    # A folder's tasks go as a whole, with files that its listing leaves out.
    for path in store.folder.iterdir() if store.folder is not None and store.folder.is_dir() else ():
        if path.name not in used:
            delete_path(path)


def _task_of(file: ListedFile) -> str:
    """Return the name in a stage's folder that a file belongs to: a task's digest, or the file's own."""
    return file.name.partition("/")[0]


def _files_of(build: RunningBuild, digest: str) -> Mapping[str, WrittenFile]:
    """Return the files of a task's receipt; none if it has no receipt, or a damaged one."""
    try:
        result = load_receipt(build.work.child(_STAGE).child(digest))
    except WorkFileDamagedError:
        return {}
    return {} if result is None else result.files


def _is_whole(path: Path, file: WrittenFile) -> bool:
    """Return whether a file is the one that a receipt names, by size and time."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_size == file.bytes and str(found.st_mtime_ns) == file.version
