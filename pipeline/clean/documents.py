"""Documents of spans: read, cleaned, batch by batch, with a tally of what was dropped.

`DocumentStream` turns spans into documents for encoding, for the tokenizer's sample and for a plan.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import as_large_binary
from pipeline.clean.reasons import Dropped
from pipeline.clean.steps import clean_batch, name_invalid
from pipeline.clean.tally import Documents, Tally
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import MALFORMED, SHOWN_MALFORMED, SourceError, Span, TextBatch
from pipeline.sources.files import read_span
from pipeline.sources.formats.byte_io import is_local
from shards.errors import first_of
from shards.format.arrays import UInt32s

JOIN_BYTES = 1 << 20
"""Batches are joined up to this much text before they are cleaned: 100,000 files of one document are few batches."""
_SPAN_SHIFT = 32
"""While documents are cleaned, their row is this number: their span's index, and behind it the row in the span."""


class DocumentStream:
    """The documents of some spans of a source, batch by batch."""

    def __init__(self, source: SourceRecipe, spans: Sequence[Span], *, most_bytes: int | None = None):
        self._source, self._spans, self._most_bytes = source, spans, most_bytes
        self._faults = list[str]()
        """Of local files that cannot be read: those of one batch are told together."""
        self.tally = Tally(self._locate)
        """What was dropped so far."""
        self.documents = 0
        """Documents so far."""
        self.stated_bytes = 0.0
        """Text of what was read so far, as its spans state it."""

    def __iter__(self) -> Iterator[tuple[UInt32s, Documents]]:
        """Yield the cleaned documents of spans, with each one's span. Small batches are joined, also over spans.

        Raises:
            SourceError: a span cannot be read as the recipe says.
            InputError: a filter failed.
        """
        pending: list[TextBatch] = []
        size = read_bytes = 0
        for index, span in enumerate(self._spans):
            before = read_bytes
            for batch in self._read(span):
                self.tally.drops.count_rows(batch.rejected)
                if batch.undivided is not None:
                    self.tally.note_undivided([span.name + batch.undivided])
                self.tally.odd_quotes += batch.odd_quotes
                for row, reason, text in batch.dropped:
                    if all(one.reason != reason for one in self.tally.shown):
                        self.tally.show(index << _SPAN_SHIFT | row, reason, text)
                shown = self.tally.malformed
                shown += batch.malformed[: SHOWN_MALFORMED - len(shown)]
                places = batch.rows.astype(np.uint64) | np.uint64(index << _SPAN_SHIFT)
                text = as_large_binary(batch.text)
                pending.append(TextBatch(text, cast("Any", places)))
                size += text.nbytes
                read_bytes += text.nbytes
                if self._most_bytes is not None and read_bytes >= self._most_bytes:
                    self.stated_bytes += span.text_bytes * min(1.0, _part_read(span, batch, read_bytes - before))
                    yield self._clean(pending)
                    return
                if size >= JOIN_BYTES:
                    yield self._clean(pending)
                    pending, size = [], 0
            self.stated_bytes += span.text_bytes
        if pending or self._faults:
            yield self._clean(pending)

    def refuse_malformed(self) -> None:
        """Stop the reading of documents at the first that does not decode, if no malformed one is allowed.

        Raises:
            SourceError: with some of the records, and the remedy.
        """
        if not self._source.max_malformed:
            dropped, shown = self.tally.dropped, self.tally.malformed
            records = self.documents + dropped.total()
            check_malformed(self._source, dropped, records, shown, " of those read so far")

    def _locate(self, place: int) -> tuple[Span, int]:
        return self._spans[place >> _SPAN_SHIFT], place & ((1 << _SPAN_SHIFT) - 1)

    def _read(self, span: Span) -> Iterator[TextBatch]:
        """Yield the batches of a span; keep the fault of a local file, to read on for those of others."""
        try:
            yield from read_span(self._source, span)
        except SourceError as error:
            self._faults.append(str(error))
            if not is_local(span.url):
                raise

    def _clean(self, pending: list[TextBatch]) -> tuple[UInt32s, Documents]:
        if self._faults:
            raise SourceError("\n".join(first_of(self._faults)))
        # One batch of all that waited, cleaned at once.
        batch = pending[0]
        if len(pending) > 1:
            text = pa.concat_arrays([part.text for part in pending])
            batch = TextBatch(text, np.concatenate([part.rows for part in pending]))
        documents = clean_batch(self._source, batch, self.tally)
        self.tally.look_at(documents)
        self.documents += len(documents)
        # Places become rows of spans again.
        indices = (documents.rows >> np.uint64(_SPAN_SHIFT)).astype(np.uint32)
        return indices, replace(documents, rows=documents.rows.astype(np.uint32))


def _part_read(span: Span, batch: TextBatch, text_bytes: int) -> float:
    """Return which part of a span is read, about, when documents of so much text have been."""
    if span.kind == "b":
        return batch.read_bytes / max(1, span.stop - span.start)
    return text_bytes / max(1, span.text_bytes)


def check_malformed(
    source: SourceRecipe, dropped: Counter[str], records: int, shown: Sequence[str], more: str = ""
) -> str:
    """Return what to say of a source's malformed records, which are dropped; empty if there are none.

    They cannot be parsed, or their text does not decode: nothing is replaced. An absent text is no fault of the file,
    and has a limit of its own.

    Args:
        source: the source.
        dropped: how many of its records are dropped, by reason, as far as they were read.
        records: how many were read.
        shown: some of the malformed ones.
        more: what is said behind their share.

    Raises:
        SourceError: they are more than the recipe allows; with the remedy.
    """
    undecoded = dropped[name_invalid(source)]
    counted = Dropped(dropped[MALFORMED] + undecoded, records)
    if not counted.found:
        return ""
    said = f"{counted.describe('record', more)} {'is' if counted.found == 1 else 'are'} malformed"
    change = "Repair the records"
    if undecoded and source.encoding != "utf-8":
        change = "Correct `encoding`, or repair the records"
    elif undecoded:
        change = (
            'If these text files are in another encoding, set it, as in encoding = "latin-1", in a source of their own '
            "if others are in UTF-8; or convert them (`iconv -f latin1 -t utf-8`). Otherwise repair the records"
        )
    for alarm in counted.refuse(
        source.name, said, source.max_malformed, key="max_malformed", change=change, examples=shown
    ):
        raise SourceError(alarm)
    return "\n  ".join([f"source {source.name!r}: {said} and dropped{'. Examples:' if shown else ''}", *shown])
