"""Malformed records, and records without text: which drop reasons they are, when there are too many, what to do then.

Text that does not decode is malformed, like a JSON line that cannot be parsed: nothing is replaced. A null, or an
absent text, is no fault of the file, and has a limit of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.sources.base import MALFORMED, SHOWN_MALFORMED, Span
from pipeline.sources.formats.contract import FORMATS
from pipeline.sources.formats.encoding_guess import explain_fault

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

NULL = "text is null"
_MOST = 0.5
"""If a larger share of a source is in another encoding than stated, it is probably the encoding of all of it."""


def invalid_reason(source: SourceRecipe) -> str:
    """Return the drop reason of text that does not decode in the source's encoding."""
    return f"text is not valid {'UTF-8' if source.encoding == 'utf-8' else source.encoding}"


def count_malformed(source: SourceRecipe, dropped: Mapping[str, float]) -> float:
    """Return how many of the dropped records are malformed: they cannot be parsed, or do not decode."""
    return dropped.get(MALFORMED, 0) + dropped.get(invalid_reason(source), 0)


@dataclass(slots=True)
class Examples:
    """Some malformed records of a source."""

    shown: list[str] = field(default_factory=list[str])
    """Each with its file, place and fault."""
    guesses: dict[str, int] = field(default_factory=dict[str, int])
    """How many of them seem to have each encoding, if the source's `encoding` can say so."""

    def add(self, source: SourceRecipe, span: Span, row: int, text: bytes) -> None:
        """Add a document that does not decode, if there is room."""
        if len(self.shown) >= SHOWN_MALFORMED:
            return
        # A guess counts only where a key of the source could say so.
        fault, guess = explain_fault(text, source.encoding)
        place = "" if span.kind == "file" else f" {span.part} row {row}"
        self.shown.append(f"{span.name}{place}: {fault}")
        if guess and span.format in FORMATS and "encoding" in FORMATS[span.format].keys:
            self.guesses[guess] = self.guesses.get(guess, 0) + 1

    def update(self, other: Examples) -> None:
        """Add the examples of another part of the source, as far as there is room."""
        self.shown += other.shown[: SHOWN_MALFORMED - len(self.shown)]
        for guess, count in other.guesses.items():
            self.guesses[guess] = self.guesses.get(guess, 0) + count


def describe_examples(examples: Examples) -> str:
    """Return the end of a sentence about malformed records: the examples, a line each."""
    return "\n  ".join([". Examples:", *examples.shown]) if examples.shown else ""


def malformed_remedy(source: SourceRecipe, share: float, examples: Examples) -> str:
    """Return what to do about a source with too many malformed records.

    Args:
        source: the source.
        share: the share of its records, from 0 to 1, as far as they were read.
        examples: some of them.
    """
    without = f"set max_malformed = {_enough(share)} to go on without these records" if share < 1 else ""
    if not examples.guesses or source.encoding != "utf-8":
        return f"Repair the records, or {without}" if without else "Repair the records"
    guess = max(examples.guesses, key=lambda name: (examples.guesses[name], name))  # windows-1252 holds latin-1
    # Few malformed records do not tell mixed files from plain English, whose letters are the same in all encodings.
    caution = "" if share > _MOST else " (UTF-8 would be read as wrong letters)"
    return (
        f'Set encoding = "{guess}" in this source if all its files have it{caution}; otherwise give the files in '
        f'{guess} a source of their own with encoding = "{guess}", or convert them (`iconv -f {guess} -t utf-8`)'
        + (f". Or {without}" if without else "")
    )


def null_share(source: SourceRecipe, dropped: Mapping[str, float], records: float) -> float:
    """Return the share of the records without text among those that the source's predicates keep."""
    # Rows that a predicate rejects were never asked for.
    rejected = {reason for one in source.predicates for reason in (one.reason, f"{one.column} is null")}
    kept = records - sum(dropped.get(reason, 0) for reason in rejected)
    return dropped.get(NULL, 0) / kept if kept else 0.0


def null_remedy(source: SourceRecipe, share: float) -> str:
    """Return what to do about a source with too many records without text."""
    key = "text" if source.content == "column" else "blob_id"
    return (
        f"{source.text_column!r} is null or absent there. Is it the column of the text (`{key}`)? If so, set "
        f"max_null = {_enough(share)} to go on without these records"
    )


def _enough(share: float) -> float:
    """Return a limit of four digits that allows a share."""
    return min(1.0, math.ceil(round(share * 1e4, 6)) / 1e4)
