"""What a source has of a document, and what its cleaning does to it before encoding: for `trace --hash`.

Rows that were dropped are in no run, so `find_rows_by_hash` reads all text of the sources, without encoding it. It
does not find malformed records, which have no text, and text that rows only name.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa

from pipeline.clean.limits import describe_fallen
from pipeline.clean.measures.measure import measure_documents
from pipeline.clean.personal_data import mask_document
from pipeline.clean.steps import LONG, SHORT, clean_batch, without_nulls
from pipeline.clean.tally import Documents, Tally
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import Span, TextBatch
from pipeline.sources.files import list_files, list_spans, read_span
from shards.format.content_hash import hash_document, hash_documents


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row of a source."""

    source: int
    span: Span
    row: int
    text: bytes
    """As the source has it."""
    kept: bool
    """Whether the source's `keep` keeps it."""

    @property
    def place(self) -> str:
        """Where it is, for a person."""
        return f"{self.span.name}#{self.span.part} row {self.row}"

    @property
    def hash(self) -> str:
        """The content hash of its text as the source has it."""
        return hash_document(self.text).hex()


def find_rows_by_hash(
    sources: list[SourceRecipe], bounds: tuple[int, int], progress: Callable[[int, int], None]
) -> Iterator[SourceRow]:
    """Yield the rows whose text has a content hash, of all sources whose rows have text.

    Args:
        sources: the sources, whose relative paths begin at their `folder`.
        bounds: the lowest hash, and one past the highest, as numbers of 128 bits.
        progress: called with the bytes of text done and in all, about.

    Raises:
        SourceError: a source cannot be read as the recipe says.
    """
    spans = {
        number: list_spans(source, list_files(source))
        for number, source in enumerate(sources)
        if source.content == "column"
    }
    total, done = sum(span.text_bytes for own in spans.values() for span in own), 0
    for number, own in spans.items():
        everything = sources[number].model_copy(update={"keep": {}})
        for span in own:
            for row, text in _search(everything, span, bounds):
                yield SourceRow(number, span, row, text, _keeps(sources[number], span, row))
            done += span.text_bytes
            progress(done, total)


def _search(source: SourceRecipe, span: Span, bounds: tuple[int, int]) -> Iterator[tuple[int, bytes]]:
    low, high = bounds[0], bounds[1] - 1
    for batch in read_span(source, span):
        text, rows = without_nulls(batch)
        documents = Documents(cast("Any", text), rows)
        # The first halves rule out nearly all rows.
        hashes = hash_documents(documents.data, documents.offsets)
        maybe = (hashes[:, 0] >= np.uint64(low >> 64)) & (hashes[:, 0] <= np.uint64(high >> 64))
        for index in np.flatnonzero(maybe).tolist():
            if low <= (int(hashes[index, 0]) << 64 | int(hashes[index, 1])) <= high:
                start, stop = documents.offsets[index : index + 2].tolist()
                yield int(rows[index]), bytes(documents.data[start:stop])


def _keeps(source: SourceRecipe, span: Span, row: int) -> bool:
    return not source.keep or any((batch.rows == row).any() for batch in read_span(source, span))


@dataclass(frozen=True)
class Trial:
    """The outcome for one document."""

    dropped: str | None
    """The first reason for which it is dropped, as the manifest counts it; None if it stays."""
    details: list[tuple[str, dict[str, Any]]]
    """The findings, as text and as JSON values."""
    text: bytes
    """Its text as it is encoded: masked, if the source masks what it holds."""
    masked: dict[str, int] = field(default_factory=dict[str, int])
    """How often each kind of personal data is masked in it."""


def try_document(source: SourceRecipe, text: bytes) -> Trial:
    """Try a source's cleaning on one document.

    Args:
        source: the source, whose relative paths begin at its `folder`.
        text: the document's bytes, as the source has them.

    Raises:
        InputError: a filter's library or model is not there.
    """
    batch = TextBatch(pa.array([text], pa.large_binary()), np.zeros(1, np.uint32))
    tally = Tally()
    documents = clean_batch(source, batch, tally)
    kinds = dict(sorted(tally.masked.items()))
    if len(documents):
        return Trial(None, [], bytes(next(iter(documents))), kinds)
    (reason,) = tally.dropped
    return Trial(reason, _describe(source, text, reason), text, kinds)


def _describe(source: SourceRecipe, text: bytes, reason: str) -> list[tuple[str, dict[str, Any]]]:
    """Return what was measured of a document that is dropped: every limit that it breaks, or its length."""
    if reason in (SHORT, LONG):
        limit = source.min_bytes if reason == SHORT else source.max_bytes
        return [(f"{reason}: it has {len(text):,} bytes, limit {limit:,}", {"value": len(text), "limit": limit})]
    # Every limit that it breaks, not just the first: moving one may not be enough.
    limits = source.clean.limits("encode")
    if reason not in {limit.reason for limit in limits}:
        return []
    names = sorted({limit.measure for limit in limits})
    document = pa.array([mask_document(source, text).decode()], pa.large_string())
    return describe_fallen(measure_documents(document, names)[0], names, limits)
