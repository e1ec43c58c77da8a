"""Alarms of the mix: a build stops when it drops more of a source than its recipe allows, and shows what would go."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.builder.encode_alarms import check_dropped
from pipeline.builder.running_build import RunningBuild
from pipeline.clean.limits import CleaningError
from pipeline.clean.tally import SHOWN, TEXT_CHARACTERS, DroppedDocument
from pipeline.encode.run import Run
from pipeline.encode.run_text import read_run_start
from pipeline.recipe.schema import Recipe
from shards.errors import plural
from shards.format.vocabulary import read_vocabulary
from shards.terminal.command_names import called_as
from shards.terminal.display import printable


def check_contamination_alarm(recipe: Recipe, counts: Iterable[dict[str, Any]], work: str) -> None:
    """Raise an alarm if the mix drops more of a source, for items of an evaluation set, than its table allows.

    Args:
        recipe: the recipe.
        counts: the counts of `find_contamination` for each set.
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
                    f"source {source!r}: {documents:,} of {plural(read, 'document')} ({share:.2%}) "
                    f"{'holds' if documents == 1 else 'hold'} an item of the evaluation set {evaluation.name!r}, more "
                    f"than its max_dropped = {evaluation.max_dropped} allows. Is {evaluation.text!r} the column of "
                    f"its items? If so, set its max_dropped = {enough} to go on without these documents: nothing is "
                    "encoded again."
                )
    if faults:
        command = f"{called_as('pipeline', 'clean-report')} {work} --examples 10"
        raise CleaningError("\n".join([*faults, f"`{command}` shows them."]))


def check_mix_alarms(recipe: Recipe, cleaning: dict[str, Any], runs: Iterable[Run], tokenizer: bytes) -> None:
    """Raise an alarm if a preset with `when = "mix"` drops more of a source than its recipe allows.

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
) -> Callable[[str], list[DroppedDocument]]:
    """Return what finds the documents of a preset with the lowest hashes: a random draw of those that it drops."""

    def show(preset: str) -> list[DroppedDocument]:
        vocabulary = read_vocabulary(tokenizer)
        own = [(item, limit) for limit in source["limits"] if limit["preset"] == preset for item in limit["random"]]
        first = {item["hash"]: (item, limit) for item, limit in reversed(own)}
        return [
            DroppedDocument(
                preset,
                item["place"],
                item["row"],
                limit["reason"],
                read_run_start(runs[item["run"]], item["index"], vocabulary, characters=TEXT_CHARACTERS),
                limit["measure"],
                item["value"],
                limit["value"],
            )
            for _, (item, limit) in sorted(first.items())[:SHOWN]
        ]

    return show


def check_near_duplicates(build: RunningBuild, found: dict[str, Any], *, note: bool) -> None:
    """Raise an alarm if the mix drops more of a source as near-duplicates than its recipe allows.

    Args:
        build: the build.
        found: `near_duplicates` of the mix's result.
        note: whether to say how many there are, if they are only reported.

    Raises:
        CleaningError: with counts and documents of every source of which too many would be dropped.
    """
    settings = build.recipe.clean.near_duplicates
    assert settings is not None
    faults: list[str] = []
    for source in found["sources"]:
        count = source["documents"] + source["elsewhere_documents"]
        tokens = source["tokens"] + source["elsewhere_tokens"]
        if not count:
            continue
        share = count / source["read"]
        counted = f"{count:,} of {plural(source['read'], 'document')} ({share:.2%}, {plural(tokens, 'token')})"
        if settings.action == "report" and note:
            build.note(
                f"near-duplicates: {source['name']}: {counted} {'is' if count == 1 else 'are'} similar to one that "
                "stays, by "
                f'{settings.min_jaccard} or more; action = "report" keeps them'
            )
        if settings.action == "drop" and share > settings.max_dropped:
            enough = min(1.0, math.ceil(share * 100) / 100)
            faults.append(
                "\n".join(
                    [
                        f"source {source['name']!r}: clean.near_duplicates drops {counted}, more than "
                        f"max_dropped = {settings.max_dropped} allows. Examples:",
                        *_show(build, source["shown"][:SHOWN]),
                        f"Raise min_jaccard, then the set is mixed again; or set max_dropped = {enough} in "
                        "[clean.near_duplicates] to go on without them. Nothing is encoded again.",
                    ]
                )
            )
    if faults:
        raise CleaningError("\n".join(faults))


def _show(build: RunningBuild, shown: list[dict[str, Any]]) -> Iterator[str]:
    """Yield lines that show near-duplicates with the documents that stay."""
    vocabulary = read_vocabulary(build.tokenizer.text.encode())
    by_digest = {run.digest: run for run in build.runs}

    def show(document: dict[str, Any]) -> str:
        run = replace(by_digest[document["run"]])  # that reads its receipt now: it may have been repaired
        (row,) = run.read_documents(document["index"], document["index"] + 1)
        text = read_run_start(run, document["index"], vocabulary, characters=TEXT_CHARACTERS)
        return f"{printable(run.labels[int(row['span'])])} row {row['row']} ({document['hash']}): {printable(text)}"

    for pair in shown:
        dropped, kept = (build.driver.read(partial(show, pair[end])) for end in ("dropped", "kept"))
        yield f"  {dropped}\n    similar by {pair['jaccard']:.3f} to {kept}"
