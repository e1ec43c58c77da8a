"""Alarms after encoding: a build stops when cleaning drops more of a source than its recipe allows, and shows what.

The alarms of the mix are in `pipeline.builder.mix_alarms`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.clean.limits import CleaningError
from pipeline.clean.malformed import (
    NULL,
    Examples,
    count_malformed,
    describe_examples,
    malformed_remedy,
    null_remedy,
    null_share,
)
from pipeline.clean.patterns import SHOWN_MATCHES, pattern_reason
from pipeline.clean.tally import SHOWN, DroppedDocument
from pipeline.sources.base import SourceError
from shards.errors import InputError, plural
from shards.terminal.display import printable

if TYPE_CHECKING:
    from pipeline.recipe.filters import Filter
    from pipeline.recipe.presets import Preset
    from pipeline.recipe.schema import SourceRecipe


class MatchError(InputError):
    """Patterns drop more of a source than its recipe allows."""


def check_pattern_matches(source: SourceRecipe, results: Iterable[dict[str, Any]]) -> None:
    """Raise an alarm if the patterns of `drop_if_matches` drop more of a source than its recipe allows.

    Args:
        source: the source.
        results: the results of encoding its units: `documents` left, `dropped` by reason, `matches` that were kept.

    Raises:
        MatchError: with the counts, and documents with the match marked.
    """
    results = list(results)
    counts = {
        pattern: sum(done["dropped"].get(pattern_reason(pattern), 0) for done in results)
        for pattern in source.drop_if_matches
    }
    matched = sum(counts.values())
    documents = matched + sum(done["documents"] for done in results)
    if matched <= source.max_dropped * documents:
        return
    share = matched / documents
    lines = [
        f"source {source.name!r}: drop_if_matches drops {matched:,} of {plural(documents, 'document')} ({share:.2%}), "
        f"more than max_dropped = {source.max_dropped} allows. Examples:"
    ]
    kept = _shown(results)
    for pattern, count in counts.items():
        if count:
            lines.append(f"  {count:,} match {printable(pattern)}")
            own = [f"    {one.where}: {printable(one.text)}" for one in kept if one.reason == pattern_reason(pattern)]
            lines += own[:SHOWN_MATCHES]
    enough = min(1.0, math.ceil(share * 100) / 100)
    lines.append(
        f"Correct the pattern, or set max_dropped = {enough} in this source to go on without them: then nothing is "
        "encoded again."
    )
    raise MatchError("\n".join(lines))


def _shown(results: Iterable[dict[str, Any]]) -> list[DroppedDocument]:
    return [DroppedDocument(**item) for done in results for item in done.get("shown", [])]


def check_malformed(source: SourceRecipe, results: Iterable[dict[str, Any]]) -> str:
    """Raise an alarm if more of a source's records are malformed than its recipe allows; else describe them.

    Args:
        source: the source.
        results: the results of encoding its units: `documents` left, `dropped` by reason, some `malformed` records.

    Returns:
        A few lines with the count and some of the records; empty when there are no malformed ones.

    Raises:
        SourceError: with the same lines, when there are too many.
    """
    results = list(results)
    dropped, records = _add_up(results)
    malformed = int(count_malformed(source, dropped))
    if not malformed:
        return ""
    share = malformed / records
    found = (
        f"source {source.name!r}: {malformed:,} of {plural(records, 'record')} ({share:.2%}) "
        f"{'is' if malformed == 1 else 'are'} malformed"
    )
    examples = Examples.of_results(results)
    if malformed <= source.max_malformed * records:
        return f"{found} and dropped{describe_examples(examples)}"
    raise SourceError(
        f"{found}, more than max_malformed = {source.max_malformed} allows{describe_examples(examples)}\n"
        f"{malformed_remedy(source, share, examples)}; nothing is then encoded again."
    )


def check_null(source: SourceRecipe, results: Iterable[dict[str, Any]]) -> None:
    """Raise an alarm if more of a source's records have no text than its recipe allows.

    Args:
        source: the source.
        results: the results of encoding its units: `documents` left, `dropped` by reason.

    Raises:
        SourceError: with the count, and the column.
    """
    dropped, records = _add_up(results)
    share = null_share(source, dropped, records)
    if share > source.max_null:
        raise SourceError(
            f"source {source.name!r}: {dropped[NULL]:,} of {plural(records, 'record')} ({share:.2%} of those that "
            f"`keep` leaves) have no text, more than max_null = {source.max_null} allows: "
            f"{null_remedy(source, share)}; nothing is then encoded again."
        )


def _add_up(results: Iterable[dict[str, Any]]) -> tuple[Counter[str], int]:
    """Return the rows dropped by reason, and the number of all rows."""
    dropped: Counter[str] = Counter()
    documents = 0
    for done in results:
        dropped.update(done["dropped"])
        documents += done["documents"]
    return dropped, documents + dropped.total()


def check_encoded(source: SourceRecipe, results: Iterable[dict[str, Any]]) -> None:
    """Raise an alarm if a preset with `when = "encode"` drops more of a source than its recipe allows.

    Args:
        source: the source.
        results: the results of encoding its units: `documents` left, `dropped` by reason, those `fallen`.

    Raises:
        CleaningError: with counts and documents.
    """
    results = list(results)
    if not source.clean.presets("encode"):
        return
    documents = _count_cleaned(source, results)
    presets: Counter[str] = Counter()
    for done in results:
        presets.update(done.get("steps", {}))
    items = _shown(results)
    check_dropped(
        source,
        source.clean.presets("encode"),
        documents=documents,
        dropped=presets,
        show=lambda name: [item for item in items if item.step == name],
    )


def _count_cleaned(source: SourceRecipe, results: Iterable[dict[str, Any]]) -> int:
    """Return how many documents came to the presets and filters before encoding: those left, and those they dropped."""
    reasons = {limit.reason for limit in source.clean.limits("encode")}
    count = 0
    for done in results:
        count += done["documents"] + sum(number for reason, number in done["dropped"].items() if reason in reasons)
        count += sum(done.get("steps", {}).get(table.label, 0) for table in source.clean.filters())
    return count


def check_dropped(
    source: SourceRecipe,
    presets: Iterable[Preset | Filter],
    *,
    documents: int,
    dropped: Mapping[str, int],
    show: Callable[[str], Sequence[object]],
) -> None:
    """Raise the alarm of encoding, and of mixing too, if a preset drops more of a source than its recipe allows.

    Args:
        source: the source.
        presets: the presets, or filters, that were applied.
        documents: how many documents they were applied to.
        dropped: how many of them each preset drops, by its name.
        show: returns some of those.

    Raises:
        CleaningError: with counts and documents of every preset that drops too many.
    """
    faults: list[str] = []
    for preset in presets:
        count = dropped.get(preset.label, 0)
        if count <= preset.max_dropped * documents:
            continue
        share = count / documents
        enough = min(1.0, math.ceil(share * 100) / 100)
        moved = "mixed again" if preset.when == "mix" else "encoded again"
        faults.append(
            "\n".join(
                [
                    f"source {source.name!r}: clean.{preset.label} drops {count:,} of {plural(documents, 'document')} "
                    f"({share:.2%}), more than max_dropped = {preset.max_dropped} allows. Examples:",
                    *(f"  {document}" for document in show(preset.label)[:SHOWN]),
                    f"Change its keys, then the source is {moved}; or set max_dropped = {enough} next to them, in "
                    f"{preset.table}, to go on without these documents: then nothing is encoded again.",
                ]
            )
        )
    if faults:
        raise CleaningError("\n".join(faults))


def check_filtered(source: SourceRecipe, results: Sequence[dict[str, Any]]) -> str:
    """Raise an alarm if a filter drops more of an encoded source than its recipe allows; else return what to note.

    Args:
        source: the source.
        results: the results of encoding its units.

    Returns:
        Which filters have changed text in vain; empty if none has.

    Raises:
        CleaningError: with counts and documents.
    """
    tables = source.clean.filters()
    if not tables:
        return ""
    steps: Counter[str] = Counter()
    edited: Counter[str] = Counter()
    for done in results:
        steps.update(done.get("steps", {}))
        edited.update(done.get("edited", {}))
    shown = _shown(results)
    check_dropped(
        source,
        tables,
        documents=_count_cleaned(source, results),
        dropped=steps,
        show=lambda name: [document for document in shown if document.step == name],
    )
    return "\n".join(
        f"source {source.name!r}: clean.{label} changed the text of {plural(count, 'document')}; they are encoded "
        "unchanged"
        for label, count in edited.items()
    )
