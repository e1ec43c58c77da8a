"""Sources of files as a build reads them: spans, batches and texts."""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.recipe.sources import FilesSource, SourceRecipe
from pipeline.sources.base import Span, TextBatch
from pipeline.sources.files import list_files, list_spans, read_span


def files_source(*paths: Path | str, **keys: Any) -> FilesSource:
    """Return a source of files; `keys` are further keys of the recipe."""
    return FilesSource(**{"name": "s", "weight": 1.0, "paths": [*map(str, paths)], **keys})


def list_spans_of(source: SourceRecipe, unit_bytes: int | None = None) -> list[Span]:
    """Return all spans of all files of a source, in order."""
    return [*chain.from_iterable(list_spans(source, list_files(source), unit_bytes).values())]


def read_batches(source: SourceRecipe, unit_bytes: int | None = None) -> list[TextBatch]:
    """Read all spans of a source."""
    return [batch for span in list_spans_of(source, unit_bytes) for batch in read_span(source, span)]


def batch_of(texts: list[str]) -> TextBatch:
    """Return texts as a batch."""
    return TextBatch(pa.array(texts, pa.large_string()), np.arange(len(texts), dtype=np.uint32))


def rows_of(batches: Iterable[TextBatch]) -> list[int]:
    """Return the rows of batches."""
    return [row for batch in batches for row in batch.rows.tolist()]


def texts_of(batches: Iterable[TextBatch]) -> list[Any]:
    """Return the texts of batches, decoded; None of a null."""
    texts = (text for batch in batches for text in batch.text.to_pylist())
    return [text.decode() if isinstance(text, bytes) else text for text in texts]
