"""Parquet files: footers checked and cut into spans of row groups, text streamed batch by batch.

Only the text column and the predicates' columns are read. If the predicates reject every row of a row group, its text
is not read. Memory: one batch, and the column chunk from which it is decoded.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import re
import struct
from collections import Counter
from collections.abc import Collection, Generator, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.arrow_arrays import gather
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import (
    BATCH_BYTES,
    File,
    Group,
    SourceError,
    Span,
    TextBatch,
    batch_without_rows,
    join_groups,
)
from pipeline.sources.formats.byte_io import is_local, open_file
from pipeline.sources.formats.columns import check_columns, split_rows, test_predicates
from pipeline.sources.formats.span_reader import SpanReader
from shards.errors import plural, remedy_of

if TYPE_CHECKING:
    from pipeline.sources.hub_file import RangeFile

_GUESSED_CONTENT_BYTES = 5000.0  # a source file of public repositories
_TAIL = struct.Struct("<I4s")  # length of the footer, magic number

_BATCH_ROWS = 1 << 14
"""Most rows in a batch."""
_COPIED_BYTES = 256 << 20
"""Most bytes that a read may take for the copies of one long value that the file has once."""
_PAGE_HEADER_BYTES = 32
_DICTIONARY_PAGE = re.compile(
    rb"\x15\x04\x15(N)\x15N(?:\x15N)?[\x3c\x4c]\x15(N)".replace(b"N", rb"[\x80-\xff]*[\0-\x7f]")
)
"""The header of a dictionary's page, as Thrift writes it: kind, size, size compressed, checksum if any, entries."""


@contextlib.contextmanager
def open_parquet(file: File | Span) -> Generator[tuple[pq.ParquetFile, Any, RangeFile | None]]:
    """Open a parquet file and read its footer.

    Yields:
        The file, Arrow's view of its bytes, and for a file on the Hub the `RangeFile` under it.

    Raises:
        OSError, ValueError: the file is not parquet, or is truncated.
    """
    remote: RangeFile | None = None
    with contextlib.ExitStack() as stack:
        if file.url.startswith("hf://"):
            from pipeline.sources.hub_file import RangeFile

            remote = stack.enter_context(RangeFile(file.url, file.version))
            data: Any = pa.PythonFile(cast("Any", remote), mode="r")
        elif is_local(file.url):
            data = stack.enter_context(pa.memory_map(file.url))
        else:
            data = pa.PythonFile(cast("Any", stack.enter_context(open_file(file))), mode="r")
        # INT96 is read as microseconds: in nanoseconds, years before 1677 and after 2262 would be others.
        opened = pq.ParquetFile(
            data,
            metadata=_read_footer(remote) if remote else None,
            # Of other remote files the next ranges are read ahead; one on the Hub does so itself, without the gaps.
            pre_buffer=remote is None and not is_local(file.url),
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",
        )
        yield stack.enter_context(opened), data, remote


def _read_footer(file: RangeFile) -> pq.FileMetaData:
    """Read exactly a remote file's footer: pyarrow by itself would request the last 64 KB."""
    if file.size < 12:
        raise pa.ArrowInvalid(f"{file.size} bytes")
    length, magic = _TAIL.unpack(file.fetch(file.size - _TAIL.size, file.size))
    if magic != b"PAR1" or not 0 < length <= file.size - 12:
        raise pa.ArrowInvalid(f"ends with {magic!r}, expected b'PAR1'")
    footer = file.fetch(file.size - _TAIL.size - length, file.size - _TAIL.size)
    return pq.read_metadata(pa.BufferReader(magic + footer + _TAIL.pack(length, magic)))


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Cut a Parquet file into spans of whole row groups with up to `unit_bytes` of text each."""
    with open_parquet(whole) as (file, _, _):
        metadata = file.metadata
        check_columns(file.schema_arrow, source, whole.name)
        content_bytes = _mean_content_bytes(file) if source.content == "software-heritage" else None
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    measured = (_measure_group(source, group, content_bytes) for group in groups)
    return join_groups(whole, measured, unit_bytes)


def _measure_group(source: SourceRecipe, group: pq.RowGroupMetaData, content_bytes: float | None) -> Group:
    text_bytes = sum(chunk.total_uncompressed_size for chunk in _chunks(group, source.text_columns))
    if content_bytes is not None:  # the column holds names, not text
        text_bytes = int(group.num_rows * content_bytes)
    return group.num_rows, text_bytes, sum(chunk.total_compressed_size for chunk in _chunks(group, source.columns))


def _chunks(group: pq.RowGroupMetaData, columns: Collection[str]) -> list[pq.ColumnChunkMetaData]:
    """Return the chunks of a Parquet row group that hold some columns, given by dotted paths, or what is in them."""
    inside = tuple(f"{column}." for column in columns)
    chunks = map(group.column, range(group.num_columns))
    return [chunk for chunk in chunks if chunk.path_in_schema in columns or chunk.path_in_schema.startswith(inside)]


def _mean_content_bytes(file: pq.ParquetFile) -> float:
    """Estimate the bytes of a file that a Parquet row names, from the first rows of `length_bytes` if it is there."""
    if "length_bytes" not in file.schema_arrow.names or not file.metadata.num_row_groups:
        return _GUESSED_CONTENT_BYTES
    import pyarrow.compute as pc  # late: the build's own process needs it seldom, and it takes 0.06 s

    lengths = file.read_row_group(0, columns=["length_bytes"], use_threads=False)["length_bytes"]
    return float(pc.mean(lengths).as_py() or _GUESSED_CONTENT_BYTES)


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Stream the row groups of a span of a Parquet file."""
    span = reader.span
    with open_parquet(span) as (file, data, remote):
        groups = {index: file.metadata.row_group(index) for index in range(span.start, span.stop)}
        if remote is not None:  # what will be read, in order, is fetched ahead
            remote.expect([_find_places(group, reader.columns) for group in groups.values()])
        for index in groups:
            reader.part = f"row group {index}"
            try:
                yield from _read_group(reader, file, data, index)
            except (pa.ArrowInvalid, OSError) as error:
                if remote is None or remedy_of(error):
                    raise
                remote.forget()
                remedy = "Run again: it is fetched again."
                raise SourceError(f"{span.name}: {reader.part} cannot be decoded: {error}. {remedy}") from error


def _find_places(group: pq.RowGroupMetaData, columns: list[str]) -> list[tuple[int, int]]:
    """Return where the Parquet chunks of some columns begin and end."""
    wanted = _chunks(group, columns)
    starts = [min(c.data_page_offset, c.dictionary_page_offset or c.data_page_offset) for c in wanted]
    return [(start, start + c.total_compressed_size) for start, c in zip(starts, wanted, strict=True)]


def _read_group(reader: SpanReader, file: pq.ParquetFile, data: Any, index: int) -> Iterator[TextBatch]:
    """Read a row group.

    Raises:
        SourceError: its rows differ from the footer's number.
    """
    group = file.metadata.row_group(index)
    first, rows, rejected, is_kept = reader.row, 0, Counter[str](), not reader.predicates
    if not is_kept:
        # The predicates' columns are small, the text is large: read the text only if the predicates keep a row.
        for table in _read_tables(file, data, index, list(reader.source.keep)):
            mask, own = test_predicates(table, reader.predicates, reader.span.name)
            rejected.update(own)
            rows += table.num_rows
            if is_kept := bool(mask.any()):
                break
    if is_kept:
        for table in _read_tables(file, data, index, reader.columns):
            yield reader.make_batch(table, reader.number_rows(table.num_rows))
    else:
        yield batch_without_rows(rejected)
        reader.row += rows
    rows = reader.row - first
    # Of a list, a chunk has the values of all rows.
    names = reader.source.text_columns
    counts = [chunk.num_values for chunk in _chunks(group, names) if chunk.path_in_schema in names] or [rows]
    held = next((count for count in counts if count != rows), rows)
    if group.num_rows != rows or held != rows:
        raise SourceError(
            f"{reader.span.name}: {reader.part} holds {plural(held, 'text')}, of which {rows} were read; its "
            f"footer says {plural(group.num_rows, 'row')}. The file is broken; restore it, or leave it out."
        )


def _read_tables(file: pq.ParquetFile, data: Any, index: int, columns: list[str]) -> Iterator[pa.Table]:
    """Yield columns of a row group, about `BATCH_BYTES` at a time, but for what is in dictionaries."""
    group = file.metadata.row_group(index)
    chunks = _chunks(group, columns)
    stated = sum(chunk.total_uncompressed_size for chunk in chunks)
    rows = min(BATCH_BYTES * group.num_rows // max(1, stated), _BATCH_ROWS)
    # Values that Arrow copies for each row that has them: a few rows are read at a time, which takes 1% more.
    # (Dictionaries that Arrow keeps take ten times the time and memory: nearly every file has them.)
    largest = max(_largest_copied(file.schema_arrow, data, chunk) for chunk in chunks)
    rows = max(1, min(rows, _COPIED_BYTES // max(1, largest)))
    batches = file.iter_batches(rows, row_groups=[index], columns=columns, use_threads=False)
    for parts in gather(batches, attrgetter("nbytes"), BATCH_BYTES):
        yield from split_rows(pa.Table.from_batches(parts), columns)


def _largest_copied(schema: pa.Schema, data: Any, chunk: pq.ColumnChunkMetaData) -> int:
    """Return the most bytes that a value may have of which the column chunk has fewer copies than rows; 0 if none."""
    name = chunk.path_in_schema
    if "BYTE_ARRAY" not in chunk.physical_type:
        return 0
    if name in schema.names and pa.types.is_dictionary(cast("Any", schema.field(name).type)):
        return 0  # Arrow keeps the dictionary
    if "DELTA_BYTE_ARRAY" in chunk.encodings:
        return chunk.total_uncompressed_size  # a value repeats the beginning of the one before
    at = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    page = _DICTIONARY_PAGE.match(data.read_at(_PAGE_HEADER_BYTES, at))
    if page is None:
        return 0
    size, entries = (_decode_number(number) for number in page.groups())
    # Each entry is of one row at least: the other rows are copies.
    return size if (chunk.num_values - entries) * size > _COPIED_BYTES else 0


def _decode_number(data: bytes) -> int:
    """Return a number of a Parquet page's header, as Thrift writes it: seven bits a byte, the lowest first."""
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data)) >> 1  # the lowest bit is the sign
