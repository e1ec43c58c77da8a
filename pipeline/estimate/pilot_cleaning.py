"""Documents of a sample that cleaning in the mix drops: limits on measures, near-duplicates, documents that hold test
items.

The sample's runs go through the stages of a build and a mix of their own. Near-duplicates are pairs, so a part of the
text shows fewer than all of it has: the shares are lower bounds. Cost: 5 ms for each megabyte of the sample.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.clean.drops.table import DUPLICATE, Counts, SourceDrops
from pipeline.encode.run import Run, RunList
from pipeline.engine.receipts import Result, write_receipt
from pipeline.engine.tasks import Payload, TaskFunction, digest_of_payload
from pipeline.mix.cuts import MixTask, mix_runs
from pipeline.mix.near_duplicates import bands, pairs, similar
from pipeline.mix.near_duplicates.drop import SimilarPairs
from pipeline.recipe.schema import Recipe
from shards.stores.store import FolderStore


def share_left(drops: SourceDrops) -> tuple[float, float]:
    """Return the shares of a source's tokens and documents that cleaning in the mix leaves, from 0 to 1.

    Copies do not count: `pipeline.estimate.duplicates` counts them, in more text than the sample.
    """
    if not drops.read.documents:
        return 1.0, 1.0
    copies = drops.steps[DUPLICATE].first if DUPLICATE in drops.steps else Counts()
    read, left = drops.read, drops.left
    return (
        left.tokens / max(1, read.tokens - copies.tokens),
        left.documents / max(1, read.documents - copies.documents),
    )


def mix_pilot(
    recipe: Recipe, runs: Sequence[Run], vocab_size: int, evaluations: str | None, folder: Path
) -> tuple[list[SourceDrops], float]:
    """Mix the runs of a sample, to see what limits, near-duplicates and test items drop.

    Args:
        recipe: the recipe.
        runs: the runs; their folders have different names.
        vocab_size: of the tokenizer.
        evaluations: the address of the folder with the items of the recipe's evaluation sets.
        folder: a folder that does not exist.

    Returns:
        What each source drops, nothing if the recipe does not clean in the mix; and the CPU seconds that
        near-duplicates took for each token, without the pairs stage, which grows with the documents.
    """
    # Nothing to see if the mix has no step of cleaning.
    measured = any(source.clean.presets("mix") for source in recipe.sources)
    if not runs or not (measured or recipe.clean.near_duplicates or evaluations):
        return [SourceDrops() for _ in recipe.sources], 0.0
    listed = RunList(FolderStore(folder), list(runs))
    folder.mkdir()
    listed.write()
    # The stages of a build on these runs, and then the mix with what they found.
    tokens = sum(run.tokens_bytes // np.dtype(run.dtype).itemsize for run in runs)
    found, seconds = _find_similar(recipe, listed, vocab_size, folder)
    (folder / "mix").mkdir()
    # Without `take`, whose share is known: what it leaves of the sample would tell less of the other steps.
    whole = recipe.model_copy(update={"sources": [one.model_copy(update={"take": 1.0}) for one in recipe.sources]})
    result = mix_runs(folder / "mix", MixTask(whole, (), listed.address, (), evaluations, similar=found), None)
    return result.drops, seconds / max(1, tokens)


def _find_similar(recipe: Recipe, listed: RunList, vocab_size: int, folder: Path) -> tuple[SimilarPairs | None, float]:
    """Run the three stages; return the pairs, and the seconds of the first and the last."""
    settings = recipe.clean.near_duplicates
    if settings is None:
        return None, 0.0

    seconds: dict[str, float] = {}

    def run(function: TaskFunction[Result], stage: str, task: Payload) -> str:
        own = folder / stage / digest_of_payload(task)
        own.mkdir(parents=True)
        started = time.process_time()
        write_receipt(own, function(own, task, _report_nothing))
        seconds[stage] = seconds.get(stage, 0.0) + time.process_time() - started
        return str(own)

    # Bands of each run; pairs and their similarity in one task each.
    for item in listed.runs:
        run(bands.write_bands, "bands", bands.BandsTask(item.place, item.dtype, vocab_size))
    run(pairs.find_pairs, "pairs", pairs.PairsTask(listed.address, f"{folder}/bands", 0, 1))
    task = similar.SimilarTask(listed.address, f"{folder}/pairs", 1, 0, 1, vocab_size)
    place = run(similar.compare_pairs, "similar", task)
    found = SimilarPairs((place,), 0, settings.min_jaccard, settings.action)
    return found, seconds["bands"] + seconds["similar"]


def _report_nothing(_done: int, _made: int) -> None:
    """Do nothing: a plan shows no progress of these stages."""
