"""Read sources again for the rows whose text has a content hash, as no run can: rows that were dropped are not in runs.

Costs reading all text of the sources, without encoding it. Not found: malformed records, which have no text; and text
that rows only name.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import as_large_binary, unwrap_mask
from pipeline.clean.tally import Documents
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import Span, TextBatch
from pipeline.sources.kinds import list_files, list_spans, read_span
from shards.format.content_hash import hash_document, hash_documents

if TYPE_CHECKING:
    import numpy.typing as npt


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
        text, rows = _without_nulls(batch)
        documents = Documents(cast("Any", text), rows)
        hashes = hash_documents(documents.data, documents.offsets)
        maybe = (hashes[:, 0] >= np.uint64(low >> 64)) & (hashes[:, 0] <= np.uint64(high >> 64))
        for index in np.flatnonzero(maybe).tolist():
            if low <= (int(hashes[index, 0]) << 64 | int(hashes[index, 1])) <= high:
                start, stop = documents.offsets[index : index + 2].tolist()
                yield int(rows[index]), bytes(documents.data[start:stop])


def _without_nulls(batch: TextBatch) -> tuple[pa.LargeBinaryArray, npt.NDArray[np.uint32]]:
    text = as_large_binary(batch.text)
    if not text.null_count:
        return text, batch.rows
    valid = text.is_valid()
    return text.filter(valid), batch.rows[unwrap_mask(valid)]


def _keeps(source: SourceRecipe, span: Span, row: int) -> bool:
    return not source.keep or any((batch.rows == row).any() for batch in read_span(source, span))
