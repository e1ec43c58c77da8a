"""Text files: cut at separators and streamed in blocks, or one document each, such as source code and Markdown."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_texts
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import LEAST_UNDIVIDED_BYTES, SourceError, Span, TextBatch
from pipeline.sources.formats.byte_io import cut_at
from pipeline.sources.formats.span_reader import SpanReader


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Cut a text file after separators; a compressed one is one span, and so is one document, also if it is empty."""
    if whole.format == "file":
        return [replace(whole, kind="file", rows=1)]
    if not source.separator:
        raise SourceError(f"{whole.name}: is read as text, which needs `separator`. Give it, or set `format`.")
    return cut_at(source.separator, whole, unit_bytes, source.encoding)


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Stream the documents of a span of a text file."""
    import pyarrow.compute as pc  # late: the build's own process needs it seldom, and it takes 0.06 s

    source, span = reader.source, reader.span
    if span.kind == "file":
        with reader.open() as raw:
            text = b"".join(piece for piece, _ in reader.read_cut(raw, lambda data: 0))
        yield TextBatch(wrap_texts(pa.large_binary(), [text]), np.zeros(1, np.uint32))
        return
    separator = source.separator or ""
    pattern: Any = separator.encode()
    with reader.open() as raw:
        for piece in reader.read_pieces(raw, pattern):
            documents = pc.split_pattern(wrap_texts(pa.large_binary(), [piece]), pattern).flatten()
            # One piece, one document: the separator may be one that the file does not have.
            is_whole = len(documents) == 1 and reader.row == span.start == 0
            if not documents[-1].as_buffer().size:
                documents = documents[:-1]  # a separator ends a document; no empty one comes after the last
            batch = TextBatch(documents, reader.number_rows(len(documents)))
            if is_whole:
                batch.undivided = _find_other(piece, separator)
            yield reader.finish(batch)


def _find_other(text: bytes, separator: str) -> str | None:
    """Return the `TextBatch.undivided` of a text file without the separator."""
    other = separator.replace("\r\n", "\n")
    if other == separator:
        other = separator.replace("\n", "\r\n")
    if other != separator and other.encode() in text:
        return f" (has {json.dumps(other)})"
    return "" if len(text) >= LEAST_UNDIVIDED_BYTES else None
