"""The three stages that find near-duplicates, between encoding and mixing; none runs unless the recipe asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.builder.running_build import RunningBuild
from pipeline.encode.run import RunList, distinct_runs
from pipeline.engine.tasks import Task, make_task
from pipeline.estimate import disk
from pipeline.mix.near_duplicates import bands, pairs, similar
from pipeline.mix.near_duplicates.drop import SimilarPairs
from pipeline.recipe.schema import Recipe
from pipeline.tokenizer.encoder import TokenizerInfo
from shards.errors import plural
from shards.stores.files import check_room

STAGES = ("bands", "pairs", "similar")


def run_near_duplicates(
    running: RunningBuild,
    recipe: Recipe,
    tokenizer: TokenizerInfo,
    runs: RunList,
    before: Callable[[list[Task]], None],
) -> SimilarPairs | None:
    """Run the three stages that find near-duplicates; return what the mix needs to read the similar pairs.

    Args:
        running: the build.
        recipe: the recipe.
        tokenizer: the tokenizer.
        runs: the runs in unit order.
        before: called with the tasks of a stage that will run; it writes the list of runs.

    Returns:
        None if the recipe does not ask for near-duplicates.
    """
    settings = recipe.clean.near_duplicates
    if settings is None:
        for stage in STAGES:
            running.used[stage] = set()
        return None
    distinct = distinct_runs(runs.runs)
    tasks = [
        make_task(
            bands.identify_bands(run.digest),
            bands.BandsTask(run.place, run.dtype, tokenizer.vocab_size),
            run.tokens_bytes,
            run.labels[0],
        )
        for run in distinct
    ]

    def check_disk(pending: list[Task]) -> None:
        documents = {bands.bands_digest(run.digest): run.num_documents for run in distinct}
        needed = sum(documents[task.digest] for task in pending) * bands.BANDS_BYTES
        if running.work.folder is not None and needed:
            check_room([("near-duplicates", running.work.folder, needed)], disk.REMEDY)

    function = "pipeline.mix.near_duplicates.bands:write_bands"
    banded = running.run_stage("bands", function, tasks, before=check_disk).results
    rows = sum(result["rows"] for result in banded)

    ranges, runs_digest = pairs.count_ranges(rows, pairs.RANGE_ROWS), pairs.digest_of_runs(runs.runs)
    folder = {stage: str(running.work.child(stage)) for stage in STAGES}
    tasks = [
        make_task(
            pairs.identify_pairs(runs_digest, number, ranges),
            pairs.PairsTask(runs.address, folder["bands"], number, ranges),
            rows * bands.BAND_DTYPE.itemsize // ranges,
            f"range {number} of {ranges}",
        )
        for number in range(ranges)
    ]
    paired = running.run_stage("pairs", "pipeline.mix.near_duplicates.pairs:find_pairs", tasks, before=before).results
    _note_cut(running, paired)
    found = sum(result["pairs"] for result in paired)

    parts = similar.count_similar_tasks(found)
    tasks = [
        make_task(
            similar.identify_similar(runs_digest, ranges, number, parts),
            similar.SimilarTask(
                runs.address, folder["pairs"], runs_digest, ranges, number, parts, tokenizer.vocab_size
            ),
            found * pairs.PAIR_DTYPE.itemsize // parts,
            f"part {number} of {parts}",
        )
        for number in range(parts)
    ]
    function = "pipeline.mix.near_duplicates.similar:compare_pairs"
    compared = running.run_stage("similar", function, tasks, before=before).results
    return SimilarPairs(
        tuple(f"{folder['similar']}/{task.digest}" for task in tasks),
        sum(result["pairs"] for result in compared),
        settings.min_jaccard,
        settings.action,
    )


def _note_cut(running: RunningBuild, results: list[dict[str, Any]]) -> None:
    """Say how many pairs were not compared."""
    buckets, documents, left_out = (
        sum(result["cut"][name] for result in results) for name in ("buckets", "documents", "pairs")
    )
    if buckets:
        running.note(
            f"near-duplicates: {plural(buckets, 'bucket')} of more than {pairs.MOST_MEMBERS} documents, {documents:,} "
            f"in all: compared with the {pairs.CENTERS} longest of each; {plural(left_out, 'pair')} left out"
        )
