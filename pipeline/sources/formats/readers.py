"""File formats of sources: cut a file into spans, and stream a span as batches of Arrow text.

At most a batch, or one row group's column chunk, is in memory. Compressed jsonl and text cannot be cut, so each such
file is one span.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_texts
from pipeline.sources.base import UNIT_BYTES, Columns, SourceError, Span, TextBatch
from pipeline.sources.formats import jsonl, parquet
from pipeline.sources.formats.byte_io import (
    TEXT_PER_STORED_BYTE,
    find_boundaries,
    is_local,
    open_file,
    read_blocks,
    read_head,
    read_pieces,
    truncated,
)
from pipeline.sources.formats.carried_types import no_columns
from pipeline.sources.formats.detect import is_compressed

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

_CONTENT_PER_LINE_BYTE = 25  # a line of 200 bytes names a source file of 5,000; only for estimates


def cut_file(
    source: SourceRecipe, url: str, name: str, version: str, format_: str, unit_bytes: int | None = None
) -> list[Span]:
    """Cut a file by the reader of its format into spans of up to `unit_bytes` of text (`UNIT_BYTES` when None).

    Raises:
        SourceError: the file is broken or lacks a column.
    """
    if format_ == "parquet":
        return parquet.cut_file(source, url, name, version, unit_bytes)
    if source.keep and format_ != "jsonl":
        raise SourceError(f"{name}: is read as {format_} and has no columns; predicates need parquet or jsonl.")
    size = int(version.partition(" ")[0])
    compressed = is_compressed(name)
    per_byte = _CONTENT_PER_LINE_BYTE if source.content == "software-heritage" else 1
    text_bytes = int(size * (TEXT_PER_STORED_BYTE if compressed else 1) * per_byte)
    if source.carry and format_ != "jsonl":
        raise no_columns(source, name, format_)
    if format_ == "file":
        return [Span(url, name, version, format_, "file", 0, size, text_bytes, 1, size)]
    if size == 0:
        raise SourceError(f"{name}: the file is empty. Leave it out of `paths`.")
    whole = Span(url, name, version, format_, "b", 0, size, text_bytes, None, size)
    if format_ == "jsonl":
        whole = replace(whole, carried=jsonl.check_head(source, whole))
    unit_bytes = (unit_bytes or UNIT_BYTES) // per_byte
    if compressed or size <= unit_bytes:
        return [whole]
    separator = b"\n" if format_ == "jsonl" else (source.separator or "").encode()
    with open_file(url) as raw:
        cuts = [0, *find_boundaries(raw, size, separator, unit_bytes), size]
    parts = itertools.pairwise(cuts)
    spans = [Span(url, name, version, format_, "b", a, b, (b - a) * per_byte, None, b - a) for a, b in parts]
    return [replace(span, carried=whole.carried) for span in spans] if whole.carried else spans


def read_rows(source: SourceRecipe, span: Span, carried: Columns = ()) -> Iterator[TextBatch]:
    """Stream a span by the reader of its format, with the columns to carry."""
    if span.format == "parquet":
        return parquet.read_row_groups(source, span, carried)
    if span.format == "jsonl":
        return jsonl.read_records(source, span, carried)
    if span.format == "text":
        return _read_text(source, span)
    return _read_file(span)


def _read_file(span: Span) -> Iterator[TextBatch]:
    if is_local(span.url) and not is_compressed(span.name):
        data = read_head(span.url, span.stop)  # half the time of a buffered file, if it is small
        if len(data) < span.stop:
            raise truncated(span, span.stop - len(data))
    else:
        with open_file(span.url) as raw:
            data = b"".join(read_blocks(raw, span))
    yield TextBatch(wrap_texts(pa.large_binary(), [data]), np.zeros(1, np.uint32))


def _read_text(source: SourceRecipe, span: Span) -> Iterator[TextBatch]:
    import pyarrow.compute as pc  # late: the build's own process needs it seldom, and it takes 0.06 s

    separator = (source.separator or "").encode()
    pattern: Any = separator
    row = 0
    with open_file(span.url) as raw:
        for piece in read_pieces(raw, span, separator):
            documents = pc.split_pattern(wrap_texts(pa.large_binary(), [piece]), pattern).flatten()
            if not documents[-1].as_buffer().size:
                documents = documents[:-1]  # a separator ends a document; no empty one comes after the last
            yield TextBatch(documents, np.arange(row, row + len(documents), dtype=np.uint32))
            row += len(documents)
