"""Alarms: a build stops when cleaning drops more of a source than its recipe allows, and shows what would go."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pipeline.clean.limits import SHOWN, TEXT_CHARACTERS, CleaningError, FallenDocument, check_dropped
from pipeline.encode.run import Run
from pipeline.encode.run_text import read_run_start
from pipeline.recipe.schema import Recipe
from shards.format.vocabulary import read_vocabulary
from shards.terminal.program import called_as


def check_contamination_alarm(recipe: Recipe, counts: Iterable[dict[str, Any]], work: str) -> None:
    """Check that no evaluation set drops more of a source than its table allows.

    Args:
        recipe: the recipe.
        counts: what `find_contamination` counted of each set.
        work: the work folder.

    Raises:
        CleaningError: with the counts of each set that would drop too much.
    """
    faults: list[str] = []
    for evaluation, found in zip(recipe.evaluations, counts, strict=True):
        for source, documents in found["documents"].items() if evaluation.action == "drop" else ():
            read = found["read"][source]
            share = documents / read
            if share > evaluation.max_dropped:
                enough = min(1.0, math.ceil(share * 100) / 100)
                faults.append(
                    f"source {source!r}: {documents:,} of {read:,} documents ({share:.2%}) hold an item of the "
                    f"evaluation set {evaluation.name!r}, more than its max_dropped = {evaluation.max_dropped} "
                    f"allows. Is {evaluation.text!r} the column of its items? If so, set its max_dropped = {enough} to "
                    "go on without these documents: nothing is encoded again."
                )
    if faults:
        command = f"{called_as('pipeline', 'clean-report')} {work} --examples 10"
        raise CleaningError("\n".join([*faults, f"`{command}` shows them."]))


def check_mix_alarms(recipe: Recipe, cleaning: dict[str, Any], runs: Iterable[Run], tokenizer: bytes) -> None:
    """Check that no preset with `when = "mix"` drops more of a source than its recipe allows.

    Args:
        recipe: the recipe.
        cleaning: what `pipeline.mix.cleaning.read_cleaning` returned.
        runs: the runs that were mixed.
        tokenizer: the `tokenizer.json` that the runs were encoded with.

    Raises:
        CleaningError: with counts and documents.
        WorkFileDamagedError: as `read_run_start`.
    """
    found = {entry["name"]: entry for entry in cleaning["sources"]}
    by_digest = {run.digest: replace(run) for run in runs}  # that read their receipts now: one may have been repaired
    for source in recipe.sources:
        if source.name not in found:
            continue
        entry = found[source.name]
        check_dropped(
            source,
            source.clean.presets("mix"),
            documents=entry["read"]["documents"],
            dropped={name: counts["documents"] for name, counts in entry["presets"].items()},
            show=_show_documents(entry, by_digest, tokenizer),
        )


def _show_documents(
    source: dict[str, Any], runs: Mapping[str, Run], tokenizer: bytes
) -> Callable[[str], list[FallenDocument]]:
    """Return what finds the documents of a preset with the lowest hashes: a random draw of those that it drops."""

    def show(preset: str) -> list[FallenDocument]:
        vocabulary = read_vocabulary(tokenizer)
        own = [(item, limit) for limit in source["limits"] if limit["preset"] == preset for item in limit["random"]]
        first = {item["hash"]: (item, limit) for item, limit in reversed(own)}
        return [
            FallenDocument(
                item["place"],
                item["row"],
                limit["reason"],
                limit["measure"],
                item["value"],
                limit["value"],
                read_run_start(runs[item["run"]], item["index"], vocabulary, characters=TEXT_CHARACTERS),
            )
            for _, (item, limit) in sorted(first.items())[:SHOWN]
        ]

    return show
