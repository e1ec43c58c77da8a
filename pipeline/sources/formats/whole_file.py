"""Files that are one document each, such as source code and Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_texts
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import Span, TextBatch
from pipeline.sources.formats.span_reader import SpanReader


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Return a file that is one document as one span, also if it is empty."""
    return [replace(whole, kind="file", rows=1)]


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Yield a file as one document."""
    with reader.open() as raw:
        text = b"".join(piece for piece, _ in reader.read_cut(raw, lambda data: 0))
    yield TextBatch(wrap_texts(pa.large_binary(), [text]), np.zeros(1, np.uint32))
