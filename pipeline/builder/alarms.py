"""Alarms: a build stops if cleaning, before encoding or in the mix, drops more of a source than its recipe allows.

It shows what would go.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from pipeline.builder.running_build import RunningBuild
from pipeline.clean.drops import (
    ITEM_REASON,
    NEAR_DUPLICATE,
    NULL,
    Excess,
    SourceDrops,
    StepDrops,
    check_malformed,
    find_excess,
    step_of,
)
from pipeline.clean.patterns import SHOWN_MATCHES, find_excess_of_patterns, pattern_reason
from pipeline.clean.tally import SHOWN, TEXT_CHARACTERS, DroppedDocument, Tally
from pipeline.encode.run import read_run_text
from pipeline.mix.evidence import find_reasons, read_evidence
from pipeline.recipe.clean_recipe import Filter
from pipeline.recipe.presets import Preset
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import SourceError
from shards.errors import InputError, plural
from shards.format.vocabulary import read_vocabulary
from shards.terminal.display import printable


def check_encoded(source: SourceRecipe, documents: int, tally: Tally) -> list[str]:
    """Raise the alarm of the first step before encoding that drops more of a source than its recipe allows.

    Args:
        source: the source.
        documents: those that were encoded.
        tally: what the steps did.

    Returns:
        What the steps have done that a person should know.

    Raises:
        InputError: with the counts, and some documents.
    """
    dropped = tally.dropped
    records = documents + dropped.total()
    notes = [check_malformed(source, dropped, records, tally.malformed)]
    _check_null(source, dropped, records)
    _check_patterns(source, tally)
    tables = [*source.clean.presets("encode"), *source.clean.filters()]

    def show(step: str) -> list[DroppedDocument]:
        return [document for document in tally.shown if document.step == step]

    if faults := [*_find_excess_of_tables(source, tables, tally.drops, show)]:
        raise InputError("\n".join(faults))
    notes += [
        f"source {source.name!r}: clean.{label} changed the text of {plural(count, 'document')}"
        + ("; they are encoded unchanged" if label.startswith("datatrove.") else "")
        for label, count in tally.edited.items()
    ]
    return list(filter(None, notes))


def _check_null(source: SourceRecipe, dropped: Counter[str], records: int) -> None:
    # Rows that a predicate rejects were never asked for.
    rejected = {reason for one in source.predicates for reason in (one.reason, f"{one.column} is null")}
    kept = records - sum(dropped[reason] for reason in rejected)
    if excess := find_excess(dropped[NULL], kept, source.max_null):
        raise SourceError(
            f"source {source.name!r}: {excess.found:,} of {plural(records, 'record')} ({excess.share:.2%} of those "
            f"that `keep` leaves) have no text, more than max_null = {source.max_null} allows: {source.text_column!r} "
            f"is null or absent there. Is it the column of the text (`{source.text_key}`)? If so, set max_null = "
            f"{excess.enough} to go on without these records; nothing is then encoded again."
        )


def _check_patterns(source: SourceRecipe, tally: Tally) -> None:
    excess = find_excess_of_patterns(source, tally.drops)
    if excess is None:
        return
    # Some documents of each pattern, with the match marked.
    lines = [
        f"source {source.name!r}: drop_if_matches drops {excess.describe()}, "
        f"more than max_dropped = {source.max_dropped} allows. Examples:"
    ]
    for pattern in source.drop_if_matches:
        if count := tally.dropped[pattern_reason(pattern)]:
            lines.append(f"  {count:,} match {printable(pattern)}")
            own = [one for one in tally.shown if one.reason == pattern_reason(pattern)]
            lines += [f"    {one.where}: {printable(one.text)}" for one in own[:SHOWN_MATCHES]]
    lines.append(
        f"Correct the pattern, or set max_dropped = {excess.enough} in this source to go on without them: then nothing "
        "is encoded again."
    )
    raise InputError("\n".join(lines))


def _find_excess_of_tables(
    source: SourceRecipe,
    tables: Iterable[Preset | Filter],
    drops: SourceDrops,
    show: Callable[[str], Sequence[DroppedDocument]],
) -> Iterator[str]:
    """Yield the lines of an alarm about each preset and filter that drops more of a source than it may.

    Args:
        source: the source.
        tables: the presets and filters.
        drops: what they drop.
        show: returns some of the documents that a step drops.
    """
    for table in tables:
        if excess := drops.step(table.step).excess(table.max_dropped):
            yield (
                f"source {source.name!r}: clean.{table.label} drops {excess.describe()}, more than max_dropped = "
                f"{table.max_dropped} allows. Examples:"
            )
            yield from (f"  {document}" for document in show(table.step)[:SHOWN])
            yield (
                f"Change the rule (the source is then {'mixed' if table.when == 'mix' else 'encoded'} again), or set "
                f"max_dropped = {excess.enough} in the same table, {table.table}, to go on without these documents: "
                "then nothing is encoded again."
            )


def check_mixed(build: RunningBuild) -> None:
    """Raise the alarm of the first step of the mix that drops more of a source than the recipe allows.

    Raises:
        InputError: with counts and documents.
    """
    for find in (_find_excess_of_presets, _find_excess_of_items, _find_excess_of_near_duplicates):
        with build.stops():
            if faults := [*find(build)]:
                hint = f"`tokenmill clean-report {shlex.quote(str(build.work))} --examples 10` shows more."
                raise InputError("\n".join([*faults, hint]))


def _draw(build: RunningBuild, source: int, step: str) -> list[tuple[int, int, dict[str, Any]]]:
    """Return documents for an alarm, that a step of the mix drops: run, index and row of the evidence of each."""
    evidence = read_evidence(build.mix, len(build.runs))
    return evidence.draw(
        build.runs, source, lambda rows: find_reasons(rows, lambda reason: step_of(reason) == step), SHOWN
    )


def _find_excess_of_presets(build: RunningBuild) -> Iterator[str]:
    def show(source: int, step: str) -> list[DroppedDocument]:
        limits = {limit.reason: limit for limit in build.recipe.sources[source].clean.limits("mix")}
        shown: list[DroppedDocument] = []
        for number, index, found in _draw(build, source, step):
            run, limit = build.runs[number], limits[found["dropped"]]
            one, text = run.describe(index), _read_start(build, number, index)
            measured = limit.measure, run.read_measure(index, limit.measure), limit.value
            shown.append(DroppedDocument(one["place"], one["row"], limit.reason, text, *measured))
        return shown

    for number, (source, own) in enumerate(zip(build.recipe.sources, build.drops, strict=True)):
        yield from _find_excess_of_tables(source, source.clean.presets("mix"), own, partial(show, number))


def _read_start(build: RunningBuild, run: int, index: int) -> str:
    vocabulary = read_vocabulary(build.tokenizer.text.encode())
    start = read_run_text(build.runs[run], index, vocabulary, characters=TEXT_CHARACTERS)
    return start.decode("utf-8", "replace")[:TEXT_CHARACTERS]


def _find_excess_of_items(build: RunningBuild) -> Iterator[str]:
    for evaluation in build.recipe.evaluations:
        for source, own in zip(build.recipe.sources, build.drops, strict=True):
            step = own.steps[f"{ITEM_REASON} {evaluation.name}"]
            if excess := step.excess(evaluation.max_dropped):
                yield (
                    f"source {source.name!r}: {excess.describe()} {'holds' if excess.found == 1 else 'hold'} an item "
                    f"of the evaluation set {evaluation.name!r}, more than its max_dropped = {evaluation.max_dropped} "
                    f"allows. Is {evaluation.text!r} the column of its items? If so, set its max_dropped = "
                    f"{excess.enough} to go on without these documents: nothing is encoded again."
                )


def _find_excess_of_near_duplicates(build: RunningBuild) -> Iterator[str]:
    settings = build.recipe.clean.near_duplicates
    if settings is None:
        return
    for number, (source, own) in enumerate(zip(build.recipe.sources, build.drops, strict=True)):
        step = own.steps[NEAR_DUPLICATE]
        # Show what would go beside what stays.
        if excess := step.excess(settings.max_dropped):
            yield (
                f"source {source.name!r}: clean.near_duplicates drops {_describe_near(step)}, more than max_dropped = "
                f"{settings.max_dropped} allows. Examples:"
            )
            yield from _show_pairs(build, number)
            yield (
                f"Raise min_jaccard, then the set is mixed again; or set max_dropped = {excess.enough} in "
                "[clean.near_duplicates] to go on without them. Nothing is encoded again."
            )


def note_near_duplicates(build: RunningBuild) -> None:
    """Say, where no alarm is raised, how many near-duplicates are only reported."""
    settings = build.recipe.clean.near_duplicates
    for source, own in zip(build.recipe.sources, build.drops, strict=True):
        step = own.steps.get(NEAR_DUPLICATE)
        if settings and step and step.reports and step.found.documents:
            build.note(
                f"near-duplicates: {source.name}: {_describe_near(step)} "
                f"{'is' if step.found.documents == 1 else 'are'} similar to a kept document, by "
                f'{settings.min_jaccard} or more; action = "report" keeps them'
            )


def _describe_near(step: StepDrops) -> str:
    counted = Excess(step.found.documents, step.came.documents)
    return counted.describe(more=f", {plural(step.found.tokens, 'token')}")


def _show_pairs(build: RunningBuild, source: int) -> Iterator[str]:
    """Yield the lines of an alarm that show near-duplicates of a source with the documents that stay."""

    def show(number: int, index: int) -> str:
        one = build.runs[number].describe(index)
        place = f"{printable(one['place'])} row {one['row']} ({one['hash']})"
        return f"{place}: {printable(_read_start(build, number, index))}"

    for run, index, found in _draw(build, source, NEAR_DUPLICATE):
        twin = show(found["twin_run"], found["twin_index"])
        yield f"  {show(run, index)}\n    similar by {found['jaccard']:.3f} to {twin}"
