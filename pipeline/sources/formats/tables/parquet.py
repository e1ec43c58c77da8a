"""Parquet files: footers checked and cut into spans of row groups, text streamed batch by batch.

Only the text column and the predicates' columns are read. If the predicates reject every row of a row group, its text
is not read. Memory: one batch, and the column chunk from which it is decoded.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.recipe.carry import parse_carry
from pipeline.recipe.predicates import Predicate, parse_keep
from pipeline.sources.base import BATCH_BYTES, Columns, Group, SourceError, Span, TextBatch, join_groups
from pipeline.sources.formats.byte_io import is_local, open_file
from pipeline.sources.formats.carried_types import types_in_schema
from pipeline.sources.formats.columns import check_predicates, check_text_type, make_batch, test_predicates
from shards.errors import plural, remedy_of

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe
    from pipeline.sources.network.hub_file import RangeFile

_GUESSED_CONTENT_BYTES = 5000.0  # a source file of public repositories
_TAIL = struct.Struct("<I4s")  # length of the footer, magic number

_BATCH_ROWS = 1 << 14
"""Most rows in a batch: a dictionary-encoded column of long equal texts is small in the file but large in memory."""


@contextlib.contextmanager
def open_parquet(url: str, name: str, version: str) -> Generator[tuple[pq.ParquetFile, RangeFile | None]]:
    """Open a parquet file and read its footer; for a file on the Hub, also return the `RangeFile` under it.

    Raises:
        SourceError: the file is not parquet, or is truncated.
    """
    remote: RangeFile | None = None
    with contextlib.ExitStack() as stack:
        try:
            if url.startswith("hf://"):
                from pipeline.sources.network.hub_file import RangeFile

                remote = stack.enter_context(RangeFile(url, version))
                file = pq.ParquetFile(
                    cast("Any", remote),
                    metadata=_read_footer(remote),
                    pre_buffer=False,  # would read the gaps between columns too; the file itself fetches ahead
                    page_checksum_verification=True,
                )
            elif is_local(url):
                mapped = stack.enter_context(pa.memory_map(os.path.expanduser(url)))
                file = pq.ParquetFile(mapped, page_checksum_verification=True)
            else:
                raw = stack.enter_context(open_file(url))
                file = pq.ParquetFile(raw, pre_buffer=True, page_checksum_verification=True)
        except (pa.ArrowInvalid, OSError) as error:
            if remedy_of(error):
                raise
            raise SourceError(f"{name}: not a whole parquet file: {error}. Truncated? Restore the file.") from error
        yield stack.enter_context(file), remote


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
    name = whole.name
    with open_parquet(whole.url, name, whole.version) as (file, _):
        schema, metadata = file.schema_arrow, file.metadata
        check_text_type(schema, source, name)
        check_predicates(schema, parse_keep(source.keep), name)
        types = types_in_schema(schema, source, name) if source.carry else ()
        content_bytes = _mean_content_bytes(file) if source.content == "software-heritage" else None
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    measured = (_measure_group(source, group, content_bytes) for group in groups)
    return join_groups(replace(whole, carried=types), measured, unit_bytes)


def _measure_group(source: SourceRecipe, group: pq.RowGroupMetaData, content_bytes: float | None) -> Group:
    read_columns = {source.text_column, *source.keep}
    carried_columns = {item.name for item in map(parse_carry, source.carry)} - read_columns
    stored = text_bytes = carried = 0
    for chunk in _chunks(group):
        if chunk.path_in_schema in read_columns:
            stored += chunk.total_compressed_size
        if chunk.path_in_schema in carried_columns:
            carried += chunk.total_compressed_size
        if chunk.path_in_schema == source.text_column:
            text_bytes += chunk.total_uncompressed_size
    if content_bytes is not None:  # the column holds names, not text
        text_bytes = int(group.num_rows * content_bytes)
    return Group(group.num_rows, text_bytes, stored, carried)


def _mean_content_bytes(file: pq.ParquetFile) -> float:
    """Estimate the bytes of a file that a row names, from the first rows of `length_bytes` if that column exists."""
    if "length_bytes" not in file.schema_arrow.names or not file.metadata.num_row_groups:
        return _GUESSED_CONTENT_BYTES
    import pyarrow.compute as pc  # late: the build's own process needs it seldom, and it takes 0.06 s

    lengths = file.read_row_group(0, columns=["length_bytes"], use_threads=False)["length_bytes"]
    return float(pc.mean(lengths).as_py() or _GUESSED_CONTENT_BYTES)


def read_span(source: SourceRecipe, span: Span, carried: Columns = ()) -> Iterator[TextBatch]:
    """Stream the row groups of a span of a Parquet file, with the columns to carry."""
    predicates = parse_keep(source.keep)
    row = 0
    with open_parquet(span.url, span.name, span.version) as (file, remote):
        metadata = file.metadata
        groups = range(span.start, span.stop)
        ruled_out = {index: _rule_out(metadata.row_group(index), predicates) for index in groups}
        if remote is not None:
            wanted = {source.text_column, *source.keep, *(name for name, _ in carried)}
            kept = [metadata.row_group(index) for index in groups if not ruled_out[index]]
            _expect_columns(remote, [[c for c in _chunks(group) if c.path_in_schema in wanted] for group in kept])
        for index in groups:
            if rejected := ruled_out[index]:
                yield TextBatch(pa.nulls(0, pa.large_string()), np.zeros(0, np.uint32), rejected)
            else:
                yield from _read_checked(file, remote, source, predicates, index, row, span.name, carried)
            row += metadata.row_group(index).num_rows


def _read_checked(
    file: pq.ParquetFile,
    remote: RangeFile | None,
    source: SourceRecipe,
    predicates: list[Predicate],
    index: int,
    first_row: int,
    name: str,
    carried: Columns,
) -> Iterator[TextBatch]:
    """Read a row group; refuse it if it cannot be decoded or its rows differ from the footer's number."""
    group = file.metadata.row_group(index)
    chunk = next((c for c in _chunks(group) if c.path_in_schema == source.text_column), None)
    rows = 0
    try:
        for batch in _read_group(file, source, predicates, index, first_row, (carried, name)):
            rows += len(batch.rows) + sum(batch.rejected.values())
            yield batch
    except (pa.ArrowInvalid, OSError) as error:
        if remedy_of(error):
            raise
        if remote is not None:
            remote.forget()
        raise SourceError(
            f"{name}: row group {index} cannot be decoded: {error}. "
            + ("Run again: it is fetched again." if remote is not None else "Restore the file, or leave it out.")
        ) from error
    if rows != group.num_rows or (chunk is not None and chunk.num_values != rows):
        held = chunk.num_values if chunk is not None else rows
        raise SourceError(
            f"{name}: row group {index} holds {plural(held, 'text')}, of which {rows} were read; its footer says "
            f"{plural(group.num_rows, 'row')}. The file is broken; restore it, or leave it out."
        )


def _expect_columns(remote: RangeFile, chunks: list[list[pq.ColumnChunkMetaData]]) -> None:
    """Tell a remote file which column chunks will be read, in order, so that it fetches them ahead."""
    groups: list[list[tuple[int, int]]] = []
    for group in chunks:
        starts = [min(c.data_page_offset, c.dictionary_page_offset or c.data_page_offset) for c in group]
        groups.append([(start, start + c.total_compressed_size) for start, c in zip(starts, group, strict=True)])
    remote.expect(groups)


def _rule_out(group: pq.RowGroupMetaData, predicates: list[Predicate]) -> dict[str, int]:
    """Return the rows rejected by reason when the statistics alone show that the first predicate rejects every row.

    Only the first predicate is tested, because a row is counted under the first predicate that rejects it.
    """
    if not predicates:
        return {}
    first = predicates[0]
    chunk = next((c for c in _chunks(group) if c.path_in_schema == first.column), None)
    statistics: Any = chunk.statistics if chunk is not None else None
    if statistics is None or not statistics.has_null_count:
        return {}
    nulls = int(statistics.null_count)
    others = group.num_rows - nulls
    if others and not (statistics.has_min_max and first.excludes(statistics.min, statistics.max)):
        return {}
    counts = {f"{first.column} is null": nulls, first.reason: others}
    return {reason: count for reason, count in counts.items() if count}


def _chunks(group: pq.RowGroupMetaData) -> list[pq.ColumnChunkMetaData]:
    return [group.column(i) for i in range(group.num_columns)]


def _read_group(
    file: pq.ParquetFile,
    source: SourceRecipe,
    predicates: list[Predicate],
    index: int,
    first_row: int,
    carried: tuple[Columns, str],
) -> Iterator[TextBatch]:
    group = file.metadata.row_group(index)
    if predicates:
        # The predicates' columns are small, the text is large: read the text only if the predicates keep a row.
        table = file.read_row_group(index, columns=list(source.keep), use_threads=False)
        mask, rejected = test_predicates(table, predicates)
        if not mask.any():
            yield TextBatch(pa.nulls(0, pa.large_string()), np.zeros(0, np.uint32), rejected)
            return
    row = first_row
    batches = file.iter_batches(
        batch_size=_batch_rows(group, source.text_column),
        row_groups=[index],
        columns=list(dict.fromkeys([source.text_column, *source.keep, *(name for name, _ in carried[0])])),
        use_threads=False,
    )
    for batch in batches:
        rows = np.arange(row, row + batch.num_rows, dtype=np.uint32)
        yield make_batch(batch, source.text_column, predicates, rows, carried=carried)
        row += batch.num_rows


def _batch_rows(group: pq.RowGroupMetaData, text: str) -> int:
    for chunk in _chunks(group):
        if chunk.path_in_schema == text:
            rows = BATCH_BYTES * group.num_rows // max(1, chunk.total_uncompressed_size)
            return max(1, min(rows, _BATCH_ROWS))
    return 1024
