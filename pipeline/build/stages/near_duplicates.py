"""The three stages that find near-duplicates, between encoding and mixing; none runs unless the recipe asks for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.build.context import BuildContext
from pipeline.clean.limits import SHOWN, TEXT_CHARACTERS, CleaningError
from pipeline.encode.run import RunList
from pipeline.encode.run_text import read_run_start
from pipeline.engine.tasks import Task
from pipeline.estimate import disk
from pipeline.mix.near_duplicates import bands, pairs, similar
from pipeline.mix.near_duplicates.drop import SimilarPairs
from pipeline.recipe.schema import Recipe
from pipeline.tokenizer.encoder import TokenizerInfo
from shards.format.vocabulary import read_vocabulary
from shards.stores.files import check_room
from shards.terminal.display import printable

STAGES = ("bands", "pairs", "similar")


def find_similar_pairs(
    context: BuildContext,
    recipe: Recipe,
    tokenizer: TokenizerInfo,
    runs: RunList,
    before: Callable[[list[Task]], None],
) -> SimilarPairs | None:
    """Find the pairs of similar documents in the runs; return what the mix needs to read them.

    Args:
        context: the build.
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
            context.used[stage] = set()
        return None
    distinct = pairs.distinct_runs(runs.runs)
    tasks = [
        Task(
            bands.bands_digest(run.digest),
            bands.BandsTask(run.place, run.dtype, tokenizer.vocab_size),
            run.tokens_bytes,
            run.labels[0],
        )
        for run in distinct
    ]

    def check_disk(pending: list[Task]) -> None:
        documents = {bands.bands_digest(run.digest): run.num_documents for run in distinct}
        needed = sum(documents[task.digest] for task in pending) * bands.BANDS_BYTES
        if context.work.folder is not None and needed:
            check_room([("near-duplicates", context.work.folder, needed)], disk.REMEDY)

    function = "pipeline.mix.near_duplicates.bands:write_bands"
    banded = context.run_stage("bands", function, tasks, before=check_disk).results
    rows = sum(result["rows"] for result in banded)

    ranges, runs_digest = bands.count_ranges(rows, pairs.RANGE_ROWS), pairs.digest_of_runs(runs.runs)
    folder = {stage: str(context.work.child(stage)) for stage in STAGES}
    tasks = [
        Task(
            pairs.pairs_digest(runs_digest, number, ranges),
            pairs.PairsTask(runs.address, folder["bands"], number, ranges),
            rows * bands.BAND_DTYPE.itemsize // ranges,
            f"range {number} of {ranges}",
        )
        for number in range(ranges)
    ]
    paired = context.run_stage("pairs", "pipeline.mix.near_duplicates.pairs:find_pairs", tasks, before=before).results
    _note_cut(context, paired)
    found = sum(result["pairs"] for result in paired)

    parts = similar.count_tasks(found)
    tasks = [
        Task(
            similar.similar_digest(runs_digest, ranges, number, parts),
            similar.SimilarTask(
                runs.address, folder["pairs"], runs_digest, ranges, number, parts, tokenizer.vocab_size
            ),
            found * pairs.PAIR_DTYPE.itemsize // parts,
            f"part {number} of {parts}",
        )
        for number in range(parts)
    ]
    function = "pipeline.mix.near_duplicates.similar:compare_pairs"
    compared = context.run_stage("similar", function, tasks, before=before).results
    return SimilarPairs(
        tuple(f"{folder['similar']}/{task.digest}" for task in tasks),
        sum(result["pairs"] for result in compared),
        settings.min_jaccard,
        settings.action,
    )


def check_near_duplicates(
    context: BuildContext,
    recipe: Recipe,
    tokenizer: TokenizerInfo,
    runs: RunList,
    found: dict[str, Any],
    *,
    note: bool,
) -> None:
    """Check that near-duplicates do not take too much of a source.

    Args:
        context: the build.
        recipe: the recipe.
        tokenizer: the tokenizer.
        runs: the runs that were mixed.
        found: `near_duplicates` of the mix's result.
        note: whether to say how many there are, if they are only reported.

    Raises:
        CleaningError: with counts and documents of every source that would lose too many.
    """
    settings = recipe.clean.near_duplicates
    assert settings is not None
    faults: list[str] = []
    for source in found["sources"]:
        count = source["documents"] + source["elsewhere_documents"]
        tokens = source["tokens"] + source["elsewhere_tokens"]
        if not count:
            continue
        share = count / source["read"]
        counted = f"{count:,} of {source['read']:,} documents ({share:.2%}, {tokens:,} tokens)"
        if settings.action == "report" and note:
            context.note(
                f"near-duplicates: {source['name']}: {counted} are similar to one that stays, by "
                f'{settings.min_jaccard} or more; action = "report" keeps them'
            )
        if settings.action == "drop" and share > settings.max_dropped:
            enough = min(1.0, math.ceil(share * 100) / 100)
            faults.append(
                "\n".join(
                    [
                        f"source {source['name']!r}: clean.near_duplicates drops {counted}, more than "
                        f"max_dropped = {settings.max_dropped} allows. Examples:",
                        *_show(context, tokenizer, runs, source["shown"][:SHOWN]),
                        f"Raise min_jaccard, then the set is mixed again; or set max_dropped = {enough} in "
                        "[clean.near_duplicates] to go on without them. Nothing is encoded again.",
                    ]
                )
            )
    if faults:
        raise CleaningError("\n".join(faults))


def _show(context: BuildContext, tokenizer: TokenizerInfo, runs: RunList, shown: list[dict[str, Any]]) -> Iterator[str]:
    """Yield lines that show near-duplicates with the documents that stay."""
    vocabulary = read_vocabulary(tokenizer.text.encode())
    by_digest = {run.digest: run for run in runs.runs}

    def show(document: dict[str, Any]) -> str:
        run = replace(by_digest[document["run"]])  # that reads its receipt now: it may have been repaired
        (row,) = run.read_documents(document["index"], document["index"] + 1)
        text = read_run_start(run, document["index"], vocabulary, characters=TEXT_CHARACTERS)
        return f"{printable(run.labels[int(row['span'])])} row {row['row']} ({document['hash']}): {printable(text)}"

    for pair in shown:
        dropped, kept = (context.driver.read(partial(show, pair[end])) for end in ("dropped", "kept"))
        yield f"  {dropped}\n    similar by {pair['jaccard']:.3f} to {kept}"


def _note_cut(context: BuildContext, results: list[dict[str, Any]]) -> None:
    """Say how many pairs were not compared."""
    buckets, documents, left_out = (
        sum(result["cut"][name] for result in results) for name in ("buckets", "documents", "pairs")
    )
    if buckets:
        context.note(
            f"near-duplicates: {buckets:,} buckets of more than {pairs.MOST_MEMBERS} documents, {documents:,} in all: "
            f"compared with the {pairs.CENTERS} longest of each; {left_out:,} pairs left out"
        )
