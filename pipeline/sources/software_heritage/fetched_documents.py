"""Documents that the fetch stage wrote, as parquet: a span's rows and texts, and the counts of rejected rows."""

# pyright: reportUnknownMemberType=false
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.arrow_arrays import gather, wrap_numbers, wrap_texts
from pipeline.engine.receipts import Result, TaskOutput
from pipeline.sources.base import BATCH_BYTES, Span, TextBatch, Unit, batch_without_rows
from shards.stores.store import FolderStore

FORMAT = "documents"
_REJECTED = b"rejected"
_Document = tuple[int, bytes]
"""Its row in the span, and its UTF-8."""
_SCHEMA = pa.schema([pa.field("row", pa.uint32(), nullable=False), pa.field("text", pa.large_string(), nullable=False)])


def read_fetched(span: Span) -> Iterator[TextBatch]:
    """Stream a span's fetched documents; the first batch has no text, but the counts of rejected rows by reason.

    Args:
        span: `url` is the file, in the folder of the task that wrote it.

    Raises:
        WorkFileDamagedError: the file is not as it was written.
    """
    path = Path(span.url)
    # Read and check the whole file: pages have checksums, but the footer has none. Memory: the compressed text.
    data = TaskOutput(FolderStore(path.parent)).read(path.name)
    yield from read_file(pa.BufferReader(pa.py_buffer(data)))


def read_file(source: Path | pa.NativeFile) -> Iterator[TextBatch]:
    """Stream the fetched documents of a file, as `read_fetched` does. Its footer is not checked."""
    with pq.ParquetFile(source, memory_map=True, page_checksum_verification=True) as file:
        metadata: dict[bytes, bytes] = file.metadata.metadata or {}
        yield batch_without_rows(json.loads(metadata[_REJECTED]))
        for index in range(file.metadata.num_row_groups):
            table: Any = file.read_row_group(index, use_threads=False).combine_chunks()
            rows = np.frombuffer(table["row"].chunk(0).buffers()[1], np.uint32)[: table.num_rows]
            yield TextBatch(table["text"].chunk(0), rows)


@dataclass(slots=True, kw_only=True)
class FetchResult(Result):
    """The result of fetching the files that a unit's rows name."""

    spans: list[tuple[str, int, int]]
    """The file of each span's documents, their number, and bytes of text."""
    rows: int
    """Rows that name a file."""
    dropped: Counter[str]
    """Those without a document, by reason."""
    part: float = 1.0
    """The part of the unit's files that was asked for."""


def write_documents(path: Path, documents: Iterable[_Document], rejected: Mapping[str, int]) -> tuple[int, int]:
    """Write a file of fetched documents in row groups of about `BATCH_BYTES`.

    Args:
        path: the file.
        documents: the documents.
        rejected: the counts of rejected rows by reason, once all documents have come.

    Returns:
        The number of documents, and their bytes of text.
    """
    count = text_bytes = 0
    # No dictionary and no statistics: texts rarely repeat, and nobody searches for them by value.
    with pq.ParquetWriter(
        path, _SCHEMA, compression="zstd", use_dictionary=False, write_statistics=False, write_page_checksum=True
    ) as writer:
        for part in gather(documents, lambda document: len(document[1]), BATCH_BYTES):
            rows = wrap_numbers(pa.uint32(), np.array([row for row, _ in part], np.uint32))
            texts = wrap_texts(pa.large_string(), [text for _, text in part])
            writer.write_table(pa.Table.from_arrays([rows, texts], schema=_SCHEMA))
            count += len(part)
            text_bytes += sum(len(text) for _, text in part)
        writer.add_key_value_metadata({_REJECTED.decode(): json.dumps(rejected, sort_keys=True)})
    return count, text_bytes


def local_unit(unit: Unit, folder: Path, result: FetchResult) -> Unit:
    """Return a unit that reads the fetched documents in a fetch task's folder; its provenance does not change."""
    # Only where and how the text is read changes; names and parts, which provenance has, stay.
    spans: list[Span] = []
    for span, (name, documents, text_bytes) in zip(unit.spans, result.spans, strict=True):
        file = result.files[name]
        spans.append(
            replace(
                span,
                url=str(folder / name),
                version=f"{file.bytes} bytes, xxh3 {file.xxh3_128}",
                format=FORMAT,
                text_bytes=text_bytes,
                rows=documents,
                stored_bytes=file.bytes,
            )
        )
    return Unit(unit.source, tuple(spans))
