"""Files on the Hub that are not parquet: `datasets` streams them in Arrow batches, one span per file.

They cannot be cut, so each file is one task, and a crash loses the whole file. Memory: a batch, and the read-ahead of
`datasets`.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pipeline.sources.base import File, SourceError, Span, TextBatch
from pipeline.sources.formats.byte_io import TEXT_PER_STORED_BYTE, is_compressed
from pipeline.sources.formats.columns import check_columns
from pipeline.sources.formats.detect import ending_of
from pipeline.sources.formats.span_reader import SpanReader
from pipeline.sources.network.hub_http import install_hub_http

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

_BATCH_ROWS = 1000
_BUILDERS = {".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv", ".arrow": "arrow", ".txt": "text"}
"""The builders in `datasets`, by the endings of the files that they read."""


def whole_file(file: File) -> Span:
    """Return the only span of a file that `datasets` streams: the whole file.

    Raises:
        SourceError: no supported builder of `datasets` fits the file.
    """
    if ending_of(file.name) not in _BUILDERS:
        raise SourceError(
            f"{file.name}: expected parquet, or one of {', '.join(_BUILDERS)}, compressed or not. Choose another split."
        )
    stop = file.stored_bytes
    text_bytes = int(stop * TEXT_PER_STORED_BYTE) if is_compressed(file.name) else stop
    return Span(file.url, file.name, file.version, "stream", "file", 0, stop, text_bytes, None, stop, file.revision)


def stream_rows(source: SourceRecipe, span: Span) -> Iterator[TextBatch]:
    """Stream a file's rows.

    Raises:
        SourceError: the file cannot be parsed, or lacks a column.
    """
    install_hub_http()
    import datasets

    builder = _BUILDERS[ending_of(span.name)]  # `whole_file` refuses other files
    reader = SpanReader(source, span)
    try:
        stream: Any = datasets.load_dataset(builder, data_files=[span.url], split="train", streaming=True)
        for table in stream.with_format("arrow").iter(batch_size=_BATCH_ROWS):
            if reader.row == 0:
                check_columns(table.schema, source, span.name)
            yield reader.make_batch(table, reader.number_rows(table.num_rows))
    except SourceError:
        raise
    except Exception as error:  # datasets and its parsers raise many types
        raise SourceError(f"{span.name}: cannot be read by `datasets`: {error!r}") from error
