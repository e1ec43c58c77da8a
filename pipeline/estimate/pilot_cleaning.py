"""Documents of a sample that cleaning in the mix drops: limits on measures, near-duplicates, documents that hold test
items.

The sample's runs go through the stages of a build and a mix of their own. Near-duplicates are pairs, so a part of the
text shows fewer than all of it has: the shares are lower bounds. Cost: 5 ms for each megabyte of the sample.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.encode.run import Run, RunList
from pipeline.engine.receipts import write_receipt
from pipeline.engine.tasks import Payload, digest_of_payload
from pipeline.mix.cleaning import Cleaning, read_block
from pipeline.mix.cuts import MixTask, mix_runs
from pipeline.mix.index import DUPLICATE, DUPLICATE_ELSEWHERE
from pipeline.mix.near_duplicates import bands, pairs, similar
from pipeline.mix.near_duplicates.drop import SimilarPairs
from pipeline.recipe.schema import Recipe
from shards.stores.store import FolderStore

COPIES = (DUPLICATE, DUPLICATE_ELSEWHERE)
"""`pipeline.estimate.duplicates` counts these, in more text than the sample."""


@dataclass(frozen=True, slots=True)
class LimitedPilot:
    """The effect of presets with `when = "mix"` on a source's runs, as shares of the documents."""

    left_tokens: float = 1.0
    left_documents: float = 1.0
    dropped: dict[str, float] = field(default_factory=dict[str, float])
    presets: dict[str, float] = field(default_factory=dict[str, float])


def limit_pilot(recipe: Recipe, index: int, runs: Sequence[Run]) -> LimitedPilot:
    """Return what the limits of a source leave of its runs."""
    cleaning = Cleaning(recipe.sources)
    if index not in cleaning.sources:
        return LimitedPilot()
    dropped: Counter[str] = Counter()
    for number, run in enumerate(runs):
        cleaning.add(index, read_block(number, run, 0, run.num_documents), dropped)
    read, left, presets = cleaning.counts(index)
    return LimitedPilot(
        left.tokens / read.tokens,
        left.documents / read.documents,
        {reason: count / read.documents for reason, count in dropped.items()},
        {name: counts.documents / read.documents for name, counts in presets.items()},
    )


@dataclass(frozen=True, slots=True)
class MixedPilot:
    """The result of a mix of the sample for one source."""

    near_duplicates: float = 0.0
    """Share of the documents that limits and copies leave: similar to one that stays, dropped or reported."""
    items: dict[str, float] = field(default_factory=dict[str, float])
    """Share of the encoded documents that hold an item, by evaluation set."""
    dropped: dict[str, float] = field(default_factory=dict[str, float])
    """Share of the encoded documents that the mix drops by reason, for the first one each; copies are not among them.
    Limits by which no document falls are 0."""
    left_tokens: float = 1.0
    """The share that is left without these, copies not counted."""
    left_documents: float = 1.0


def mix_pilot(
    recipe: Recipe, runs: Sequence[Run], vocab_size: int, evaluations: str | None, folder: Path
) -> tuple[Sequence[MixedPilot | None], float]:
    """Look for near-duplicates and for documents that hold test items in the runs of a sample.

    Args:
        recipe: the recipe.
        runs: the runs; their folders have different names.
        vocab_size: of the tokenizer.
        evaluations: the address of the folder with the items of the recipe's evaluation sets.
        folder: a folder that does not exist.

    Returns:
        What was found in each source, None if the recipe asks for neither; and the CPU seconds that near-duplicates
        took for each token, without the pairs stage, which grows with the documents.
    """
    if not runs or (recipe.clean.near_duplicates is None and evaluations is None):
        return [None] * len(recipe.sources), 0.0
    listed = RunList(FolderStore(folder), list(runs))
    folder.mkdir()
    listed.write()
    tokens = sum(run.tokens_bytes // np.dtype(run.dtype).itemsize for run in runs)
    found, seconds = _find_similar(recipe, listed, vocab_size, folder)
    (folder / "mix").mkdir()
    result = mix_runs(folder / "mix", MixTask(recipe, (), listed.address, (), evaluations, similar=found), None)
    sources = [_read_source(recipe, number, result) for number in range(len(recipe.sources))]
    return sources, seconds / max(1, tokens)


def _find_similar(recipe: Recipe, listed: RunList, vocab_size: int, folder: Path) -> tuple[SimilarPairs | None, float]:
    """Run the three stages; return the pairs, and the seconds of the first and the last."""
    settings = recipe.clean.near_duplicates
    if settings is None:
        return None, 0.0

    seconds: dict[str, float] = {}

    def run(function: Callable[..., dict[str, Any]], stage: str, task: Payload) -> str:
        own = folder / stage / digest_of_payload(task)
        own.mkdir(parents=True)
        started = time.process_time()
        write_receipt(own, function(own, task, _report_nothing))
        seconds[stage] = seconds.get(stage, 0.0) + time.process_time() - started
        return str(own)

    for item in listed.runs:
        run(bands.write_bands, "bands", bands.BandsTask(item.place, item.dtype, vocab_size))
    run(pairs.find_pairs, "pairs", pairs.PairsTask(listed.address, f"{folder}/bands", 0, 1))
    task = similar.SimilarTask(listed.address, f"{folder}/pairs", 1, 0, 1, vocab_size)
    place = run(similar.compare_pairs, "similar", task)
    found = SimilarPairs((place,), 0, settings.min_jaccard, settings.action)
    return found, seconds["bands"] + seconds["similar"]


def _report_nothing(_done: int, _made: int) -> None:
    """Do nothing: a plan shows no progress of these stages."""


def _read_source(recipe: Recipe, number: int, result: dict[str, Any]) -> MixedPilot:
    """Return the result of a mix for one source."""
    source, step = recipe.sources[number], result["steps"][number]
    read = step["read"]["documents"]
    if not read:
        return MixedPilot()
    gone = {reason: counts for reason, counts in step["dropped"].items() if reason not in COPIES}
    near = result["near_duplicates"]["sources"][number] if "near_duplicates" in result else {"read": 0}
    similar_documents = near["documents"] + near["elsewhere_documents"] if near["read"] else 0
    left = {
        what: step["left"][what] / max(1, step["left"][what] + sum(counts[what] for counts in gone.values()))
        for what in ("tokens", "documents")
    }
    return MixedPilot(
        near_duplicates=similar_documents / max(1, near["read"]),
        items={own["name"]: own["documents"].get(source.name, 0) / read for own in result.get("contamination", [])},
        dropped=dict.fromkeys((limit.reason for limit in source.clean.limits("mix")), 0.0)
        | {reason: counts["documents"] / read for reason, counts in gone.items()},
        left_tokens=left["tokens"],
        left_documents=left["documents"],
    )
