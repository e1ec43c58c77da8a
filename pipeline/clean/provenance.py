"""Rows of sources, read again: documents by their provenance, and rows by the content hash of their text.

Rows that were dropped are in no run, so `find_rows_by_hash` reads all text of the sources, without encoding it. It
does not find malformed records, which have no text, and text that rows only name.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pipeline.clean.steps import without_nulls
from pipeline.clean.tally import Documents
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import SourceError, Span, span_of_part
from pipeline.sources.kinds import list_files, list_spans, read_span
from shards.format.content_hash import hash_document, hash_documents

if TYPE_CHECKING:
    pass


def read_documents_again(source: dict[str, Any], unit: str, rows: list[int]) -> list[bytes | None]:
    """Read documents by their provenance, as their source has them.

    Args:
        source: the source's object in the set's recipe.json, with the folder at which its paths begin as `folder`.
        unit: a span's label, `file@revision#part`.
        rows: row numbers in the span.

    Returns:
        The documents' UTF-8 bytes in the order of `rows`; None for a row that the span does not have.

    Raises:
        SourceError: the file is missing, or no longer has such a part.
    """
    keys = {key: value for key, value in source.items() if key != "folder"}
    recipe = SourceRecipe.model_validate(keys).in_folder(Path(str(source.get("folder", ""))).absolute())
    files = list_files(recipe)
    # A unit is `file@revision#part`; names may hold both signs.
    name, _, rest = unit.rpartition("@")
    part = rest.rpartition("#")[2]
    if part == "file":
        recipe = recipe.model_copy(update={"format": "file"})  # the build's; `auto` might choose another one now
    file = next((file for file in files if file.name == name), None)
    span = span_of_part(list_spans(recipe, [file]), part) if file else None
    if span is None:
        raise SourceError(f"{unit}: no such part in the source any more. Restore the files the set was built from.")
    # Read the span until all wanted rows have come.
    texts: dict[int, bytes] = {}
    wanted = set(rows)
    for batch in read_span(recipe, span):
        for index in (i for i, row in enumerate(batch.rows.tolist()) if row in wanted):
            text = batch.text[index].as_py()
            texts[int(batch.rows[index])] = text.encode() if isinstance(text, str) else text
        if wanted <= texts.keys():
            break
    documents = [texts.get(row) for row in rows]
    if recipe.content == "column":
        return documents
    from pipeline.sources.software_heritage.archive import read_archive_again

    return read_archive_again(recipe, documents)


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
