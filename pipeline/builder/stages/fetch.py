"""The stage that fetches the files that rows of Software Heritage only name."""

from collections import Counter
from pathlib import Path

from pipeline.builder.running_build import DISK_REMEDY, FETCH_SCRATCH_SHARE, RunningBuild
from pipeline.clean.reasons import Dropped
from pipeline.engine.receipts import RECEIPT_FILE
from pipeline.engine.tasks import Task
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import SourceError
from pipeline.sources.software_heritage.fetched_documents import FetchResult
from shards.stores.files import check_room
from shards.stores.store import require_folder


def run_fetch(build: RunningBuild) -> None:
    """Run the fetch stage: fetch the files that a source's rows name; afterwards its units read local documents.

    The digests do not include the archive's address or the number of connections: SHA-1 identifies each file.

    Raises:
        SourceError: more files are missing than `max_missing` allows. The files fetched so far are kept.
    """
    recipe = build.recipe
    if not recipe.needs_fetch:
        return
    folder = require_folder(build.work) / "fetch"
    # With the clients of the network, which most builds do without:
    from pipeline.sources.software_heritage import fetch
    from pipeline.sources.software_heritage.fetched_documents import local_unit

    by_source = {
        index: [fetch.make_fetch_task(unit, source, folder) for unit in build.units[index]]
        for index, source in enumerate(recipe.sources)
        if source.content != "column"
    }

    def check_disk(pending: list[Task]) -> None:
        scratch_bytes = int(sum(task.payload.unit.text_bytes for task in pending) * FETCH_SCRATCH_SHARE)
        check_room([("fetched files", folder, scratch_bytes)], DISK_REMEDY)

    every = [task for tasks in by_source.values() for task in tasks]
    results = build.run_stage("fetch", fetch.fetch_unit, every, unit="files", before=check_disk).results
    for journal in folder.glob("*.journal") if not build.dry_run else ():
        journal.unlink()
    # Judge each source by its own rows; from here on its units read the fetched documents.
    for index, tasks in by_source.items():
        with build.stops():
            check_missing(recipe.sources[index], folder, {task.digest: results[task.digest] for task in tasks})
        build.units[index] = [
            local_unit(task.payload.unit, folder / task.digest, results[task.digest]) for task in tasks
        ]


def check_missing(source: SourceRecipe, folder: Path, results: dict[str, FetchResult]) -> None:
    """End the fetch stage with an error if more of a source's files are missing than its `max_missing` allows.

    The receipts of tasks that miss files are deleted: the next build asks for these files again.

    Args:
        source: the source.
        folder: the stage's folder.
        results: those of the source's tasks, by digest.

    Raises:
        SourceError: too many are missing; the message has the counts by reason.
    """
    from pipeline.sources.network import network_settings

    dropped = sum((result.dropped for result in results.values()), Counter[str]())
    lost = Dropped(dropped.total(), sum(result.rows for result in results.values()))
    listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items()))
    said = f"{lost.describe('file')} cannot be fetched from {network_settings().content_endpoint} ({listed})"
    change = "Run again to ask for these once more (the others are kept)"
    for alarm in lost.refuse(source.name, said, source.max_missing, change=change, key="max_missing"):
        for digest, result in results.items():
            if result.dropped:
                (folder / digest / RECEIPT_FILE).unlink(missing_ok=True)
        raise SourceError(alarm)
