"""The stage that fetches the files that rows of Software Heritage only name."""

from __future__ import annotations

from pipeline.build.context import BuildContext
from pipeline.engine.tasks import Task
from pipeline.estimate import disk
from pipeline.recipe.schema import Recipe
from shards.stores.files import check_room
from shards.stores.store import require_folder


def run_fetch(context: BuildContext, recipe: Recipe) -> None:
    """Fetch the files that a source's rows name; afterwards its units read local documents.

    The digests do not include the archive's address or the number of connections: SHA-1 identifies each file.

    Raises:
        SourceError: more files are missing than `max_missing` allows. The files fetched so far are kept.
    """
    if not needs_fetch(recipe):
        context.used["fetch"] = set()
        return
    folder = require_folder(context.work) / "fetch"
    from pipeline.sources.software_heritage import (
        fetch,  # with the clients of the network, which most builds do without
    )

    by_source = {
        index: [fetch.make_fetch_task(unit, source, folder) for unit in context.units[index]]
        for index, source in enumerate(recipe.sources)
        if source.content != "column"
    }
    for index, tasks in by_source.items():
        fetch.ask_again(recipe.sources[index], folder, tasks)
    # Two sources may read the same rows in the same way.
    distinct = list({task.digest: task for tasks in by_source.values() for task in tasks}.values())

    def check_disk(pending: list[Task]) -> None:
        scratch_bytes = int(sum(task.payload.unit.text_bytes for task in pending) * disk.FETCH_SCRATCH_SHARE)
        check_room([("fetched files", folder, scratch_bytes)], disk.REMEDY)

    function = "pipeline.sources.software_heritage.fetch:fetch_unit"
    results = context.run_stage("fetch", function, distinct, unit="files", before=check_disk).results
    fetch.delete_journals(folder)
    by_digest = {task.digest: result for task, result in zip(distinct, results, strict=True)}
    for index, tasks in by_source.items():
        fetch.check_missing(recipe.sources[index], [by_digest[task.digest] for task in tasks])
        context.units[index] = [
            fetch.local_unit(task.payload.unit, folder / task.digest, by_digest[task.digest]) for task in tasks
        ]


def needs_fetch(recipe: Recipe) -> bool:
    """Return whether rows of a source only name their text."""
    return any(source.content != "column" for source in recipe.sources)
