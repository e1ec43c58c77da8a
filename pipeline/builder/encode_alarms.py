"""Alarms after encoding: a build stops if the steps before encoding drop too much of a source, and shows what.

The alarms of the mix are in `pipeline.builder.mix_alarms`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from pipeline.clean.drops.malformed import (
    NULL,
    Examples,
    count_malformed,
    describe_examples,
    malformed_remedy,
    null_remedy,
    null_share,
)
from pipeline.clean.drops.table import Excess, find_excess
from pipeline.clean.patterns import SHOWN_MATCHES, find_excess_of_patterns, pattern_reason
from pipeline.clean.tally import SHOWN, Tally
from pipeline.sources.base import SourceError
from shards.errors import InputError, plural
from shards.terminal.display import printable

if TYPE_CHECKING:
    from pipeline.clean.drops.table import SourceDrops
    from pipeline.recipe.filters import Filter
    from pipeline.recipe.presets import Preset
    from pipeline.recipe.schema import SourceRecipe


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
    notes = _check_malformed(source, dropped, documents + dropped.total(), tally.malformed)
    _check_null(source, dropped, documents + dropped.total())
    _check_patterns(source, tally)
    check_cleaning(
        source,
        [*source.clean.presets("encode"), *source.clean.filters()],
        tally.drops,
        lambda step: [document for document in tally.shown if document.step == step],
    )
    notes += [
        f"source {source.name!r}: clean.{label} changed the text of {plural(count, 'document')}; they are encoded "
        "unchanged"
        for label, count in tally.edited.items()
    ]
    return notes


def _check_malformed(source: SourceRecipe, dropped: Counter[str], records: int, examples: Examples) -> list[str]:
    malformed = int(count_malformed(source, dropped))
    if not malformed:
        return []
    counted = Excess(malformed, records, source.max_malformed)
    found = f"source {source.name!r}: {counted.describe('record')} {'is' if malformed == 1 else 'are'} malformed"
    if not find_excess(*counted):
        return [f"{found} and dropped{describe_examples(examples)}"]
    raise SourceError(
        f"{found}, more than max_malformed = {source.max_malformed} allows{describe_examples(examples)}\n"
        f"{malformed_remedy(source, counted.share, examples)}; nothing is then encoded again."
    )


def _check_null(source: SourceRecipe, dropped: Counter[str], records: int) -> None:
    share = null_share(source, dropped, records)
    if find_excess(share, 1, source.max_null):
        raise SourceError(
            f"source {source.name!r}: {dropped[NULL]:,} of {plural(records, 'record')} ({share:.2%} of those that "
            f"`keep` leaves) have no text, more than max_null = {source.max_null} allows: "
            f"{null_remedy(source, share)}; nothing is then encoded again."
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


def check_cleaning(
    source: SourceRecipe,
    tables: Iterable[Preset | Filter],
    drops: SourceDrops,
    show: Callable[[str], Sequence[object]],
) -> None:
    """Raise the alarm of encoding, and of mixing too, if presets or filters drop more of a source than they may.

    Args:
        source: the source.
        tables: the presets and filters.
        drops: what they drop.
        show: returns some of the documents that a step drops.

    Raises:
        InputError: with counts and documents of each that drops too many.
    """
    faults = [
        "\n".join(
            [
                f"source {source.name!r}: clean.{table.label} drops {excess.describe()}, more than max_dropped = "
                f"{table.max_dropped} allows. Examples:",
                *(f"  {document}" for document in show(table.step)[:SHOWN]),
                f"Change its keys, then the source is {'mixed' if table.when == 'mix' else 'encoded'} again; or set "
                f"max_dropped = {excess.enough} next to them, in {table.table}, to go on without these documents: then "
                "nothing is encoded again.",
            ]
        )
        for table in tables
        if (excess := drops.step(table.step).excess(table.max_dropped))
    ]
    if faults:
        raise InputError("\n".join(faults))
