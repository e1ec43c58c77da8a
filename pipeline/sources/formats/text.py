"""Text files that are cut at separators and streamed in blocks."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import itertools
import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipeline.arrow_arrays import wrap_texts
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import LEAST_UNDIVIDED_BYTES, SourceError, Span, TextBatch
from pipeline.sources.formats.byte_io import cut_at, first_certain
from pipeline.sources.formats.encodings import UTF8
from pipeline.sources.formats.span_reader import SpanReader

JOIN_CELL_BYTES = 4 << 20
"""A document of joined parts ends at each multiple of so many bytes of its file: the least of a span that is cut."""


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Cut a text file after separators; a compressed one is one span."""
    if not source.separator:
        remedy = 'Give it, or format = "file" for one document per file'
        raise SourceError(f"{whole.name}: is read as text, which needs `separator` to be cut into documents. {remedy}.")
    if source.join_bytes and source.encoding != UTF8:  # places in its text are not those in the file
        return [whole] if whole.stop else []
    return cut_at(source.separator, whole, unit_bytes, source.encoding)


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Stream the documents of a span of a text file."""
    import pyarrow.compute as pc  # late: the build's own process needs it seldom, and it takes 0.06 s

    source, span = reader.source, reader.span
    separator = source.separator or ""
    pattern: Any = separator.encode()
    with reader.open() as raw:
        pieces = reader.read_pieces(raw, pattern)
        if source.join_bytes:
            for texts in _join(pieces, pattern, source.join_bytes, span.start):
                yield reader.finish(TextBatch(wrap_texts(pa.large_binary(), texts), reader.number_rows(len(texts))))
            return
        for piece in pieces:
            documents = pc.split_pattern(wrap_texts(pa.large_binary(), [piece]), pattern).flatten()
            # One piece, one document: the separator may be one that the file does not have.
            is_whole = len(documents) == 1 and reader.row == span.start == 0
            if not documents[-1].as_buffer().size:
                documents = documents[:-1]  # a separator ends a document; no empty one comes after the last
            batch = TextBatch(documents, reader.number_rows(len(documents)))
            if is_whole:
                batch.undivided = _find_other(piece, separator)
            yield reader.finish(batch)


def _join(pieces: Iterator[bytes], separator: bytes, least: int, start: int) -> Iterator[list[bytes]]:
    """Yield documents: parts joined until they have `least` bytes, but for the last of a file.

    A document ends where a cell does, and before that only if another fits between. Spans begin where cells do, so the
    documents do not depend on how the file is cut.

    Args:
        pieces: the text, in pieces that end with a separator.
        separator: the text between two parts.
        least: bytes of a document.
        start: the place of the text in its file.
    """
    held = b""
    for piece in itertools.chain(pieces, [b""]):
        text = held + piece
        ends = [found.end() for found in re.finditer(re.escape(separator), text)]
        cuts = [0]
        while True:
            cell_end = (start + cuts[-1]) // JOIN_CELL_BYTES * JOIN_CELL_BYTES + JOIN_CELL_BYTES - start
            place = bisect_left(ends, cuts[-1] + least)
            if place < len(ends) and ends[place] + least <= cell_end:
                cuts.append(ends[place])
            elif (found := first_certain(text, separator, max(0, cell_end))) >= 0:
                cuts.append(found + len(separator))
            else:
                break
        documents = [text[begin : end - len(separator)] for begin, end in itertools.pairwise(cuts)]
        # The last document is held back, because a short rest of the file is joined to it.
        last = cuts[-2] if len(cuts) > 1 else 0
        if piece:
            documents, held, start = documents[:-1], text[last:], start + last
        elif cuts[-1] < len(text):
            in_cell = (start + last) // JOIN_CELL_BYTES == (start + cuts[-1]) // JOIN_CELL_BYTES
            if documents and in_cell and len(text) - cuts[-1] < least:
                del documents[-1], cuts[-1]
            end = len(text) - (len(separator) if ends[-1:] == [len(text)] else 0)
            documents.append(text[cuts[-1] : end])
        yield documents


def _find_other(text: bytes, separator: str) -> str | None:
    """Return the `TextBatch.undivided` of a text file without the separator."""
    other = separator.replace("\r\n", "\n")
    if other == separator:
        other = separator.replace("\n", "\r\n")
    if other != separator and other.encode() in text:
        return f" (has {json.dumps(other)})"
    return "" if len(text) >= LEAST_UNDIVIDED_BYTES else None
