"""Alarms: a build stops if cleaning, before encoding or in the mix, drops more of a source than its recipe allows.

It shows what would go; how, stands in `pipeline.clean.reasons`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import NamedTuple

from pipeline.builder.running_build import RunningBuild
from pipeline.clean.documents import check_malformed
from pipeline.clean.drops import StepDrops
from pipeline.clean.reasons import (
    ITEM,
    KEEP,
    MANY_TOKENS,
    NEAR_DUPLICATE,
    NULL,
    PATTERN,
    SHOWN_DOCUMENTS,
    SHOWN_REASONS,
    Dropped,
    find_reason,
    show_document,
    show_examples,
)
from pipeline.clean.tally import Tally
from pipeline.recipe.clean_recipe import Filter
from pipeline.recipe.presets import Preset
from pipeline.recipe.schema import Recipe, SourceRecipe
from pipeline.sources.base import NO_CHAT
from pipeline.sources.messages import NO_MESSAGES
from shards.errors import InputError, plural, shell_command


class _Bound(NamedTuple):
    """How much of a source a step may drop, and what to say if it drops more."""

    step: str
    subject: str
    most: float
    change: str
    place: str

    def check(self, source: SourceRecipe, step: StepDrops, examples: Iterable[str]) -> Iterator[str]:
        """Yield the alarm of a step that drops more."""
        said = f"{self.subject} {step.describe()}"
        found = Dropped(0, 0) if step.reports else step.dropped
        return found.refuse(source.name, said, self.most, change=self.change, place=self.place, examples=examples)


def _bound_table(table: Preset | Filter) -> _Bound:
    again = "mixed" if table.when == "mix" else "encoded"
    change = f"Change the rule (the source is then {again} again)"
    place = f" in the same table, {table.table},"
    return _Bound(table.step, f"clean.{table.label} drops", table.max_dropped, change, place)


def _list_bounds_of_mix(recipe: Recipe, source: SourceRecipe) -> Iterator[_Bound]:
    yield from map(_bound_table, source.clean.presets("mix"))
    for one in recipe.evaluations:
        change = f"Correct `text` of the evaluation set, if {one.text!r} is not the column of its items"
        subject = f"the evaluation set {one.name!r} drops"
        yield _Bound(f"{ITEM}{one.name}", subject, one.max_dropped, change, " in the table of the evaluation set")
    if near := recipe.clean.near_duplicates:
        change, place = "Raise min_jaccard (the set is then mixed again)", " in [clean.near_duplicates]"
        yield _Bound(NEAR_DUPLICATE, "clean.near_duplicates drops", near.max_dropped, change, place)


def check_encoded(source: SourceRecipe, documents: int, tally: Tally) -> list[str]:
    """Raise the alarms of the steps before encoding that drop more of a source than its recipe allows.

    Args:
        source: the source.
        documents: those that were encoded.
        tally: what the steps did.

    Returns:
        What the steps have done that a person should know.

    Raises:
        InputError: with the counts, and some documents.
    """
    records = documents + tally.dropped.total()
    notes = [check_malformed(source, tally.dropped, records, tally.malformed)]
    for one in {one.reason: one for one in reversed(tally.shown) if one.reason.startswith(NO_CHAT)}.values():
        counted, (where, *_) = Dropped(tally.dropped[one.reason], records), show_document(asdict(one))
        notes.append(f"source {source.name!r}: {one.reason}: {counted.describe('record')} dropped, the first {where}")
    alarms = [*_check_null(source, tally, records)]
    # The patterns together: a document counts for the first that matches.
    patterns = StepDrops()
    for pattern in source.drop_if_matches:
        step = tally.drops.step(f"{PATTERN}{pattern}")
        patterns.decided, patterns.reasons = step.decided, patterns.reasons | step.reasons
    bounds = [
        (_Bound("", "drop_if_matches drops", source.max_dropped, "Correct the pattern", " in this source"), patterns)
    ]
    tables = map(_bound_table, [*source.clean.presets("encode"), *source.clean.filters()])
    bounds += ((table, tally.drops.step(table.step)) for table in tables)
    for bound, step in bounds:
        shown = {reason: [one for one in tally.shown if one.reason == reason] for reason in _list_largest(step)}
        examples = {reason: map(asdict, own[:SHOWN_DOCUMENTS]) for reason, own in shown.items()}
        alarms += bound.check(source, step, show_examples(examples))
    if alarms:
        raise InputError(alarms)
    notes += [
        f"source {source.name!r}: clean.{label} changed the text of {plural(count, 'document')}"
        + ("; they are encoded unchanged" if label.startswith("datatrove.") else "")
        for label, count in tally.edited.items()
    ]
    return list(filter(None, notes))


def _check_null(source: SourceRecipe, tally: Tally, records: int) -> Iterator[str]:
    # Rows that a predicate rejects were never asked for.
    rejected = sum(count for reason, count in tally.dropped.items() if find_reason(reason) is KEEP)
    counted = Dropped(tally.dropped[NULL] + tally.dropped[NO_MESSAGES], records - rejected)
    which = " that `keep` leaves" if source.predicates else ""
    said = f"{counted.describe('record')}{which} have no {'messages' if source.has_conversations else 'text'}"
    columns = " and ".join(map(repr, source.text_columns))
    change = f"{columns} is null, absent or empty there. Correct `{source.text_key}`, if the text is elsewhere"
    return counted.refuse(source.name, said, source.max_null, key="max_null", change=change)


def _list_largest(step: StepDrops) -> list[str]:
    """Return the reasons of a step that an alarm shows: those of most documents."""
    return sorted(step.reasons, key=lambda reason: -step.reasons[reason].documents)[:SHOWN_REASONS]


def check_mixed(build: RunningBuild) -> None:
    """Raise the alarms of the steps of the mix that drop more of a source than the recipe allows.

    Raises:
        InputError: with counts and documents.
    """
    alarms: list[str] = []
    for number, (source, own) in enumerate(zip(build.recipe.sources, build.drops, strict=True)):
        for bound in _list_bounds_of_mix(build.recipe, source):
            step = own.step(bound.step)
            alarms += bound.check(source, step, _show_mixed(build, number, step))
    with build.stops():
        if alarms:
            hint = f"`{shell_command('tokenmill', 'clean-report', str(build.work), '--examples', '10')}` shows more."
            raise InputError([*alarms, hint])


def _show_mixed(build: RunningBuild, source: int, step: StepDrops) -> Iterator[str]:
    """Yield the lines that show some documents of a step of the mix, as `clean-report` draws them."""
    from pipeline.builder.clean_report import StoredDocuments

    documents, largest = StoredDocuments(build), _list_largest(step)
    rows = [row for row in documents.list_rows(source, build.drops[source]) if row.reason in largest]
    yield from show_examples({row.reason: documents.draw(source, row, SHOWN_DOCUMENTS) for row in rows})


def note_drops(build: RunningBuild) -> None:
    """Say, where no alarm is raised, how many near-duplicates are only reported, and what long conversations hold."""
    settings = build.recipe.clean.near_duplicates
    for source, own in zip(build.recipe.sources, build.drops, strict=True):
        step = own.steps.get(NEAR_DUPLICATE)
        if settings and step and step.reports and step.found.documents:
            build.note(
                f"near-duplicates: {source.name}: similar to a kept document, by {settings.min_jaccard} or more: "
                f'{step.describe()}; action = "report" keeps them'
            )
        if step := own.steps.get(MANY_TOKENS):
            build.note(
                f"dropped of {source.name} as {MANY_TOKENS}: {plural(step.first.documents, 'conversation')} with "
                f"{step.first.tokens:,} of {plural(own.read.tokens, 'token')}"
            )
