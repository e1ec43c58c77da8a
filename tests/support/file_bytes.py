"""Files as bytes: tables, in many small row groups or batches, and what compresses."""

import bz2
import csv
import gzip
import io
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
"""By the ending of the file's name."""


def to_parquet(table: Any, group: int | None = 4) -> bytes:
    """Return a table as a Parquet file; `group` is the number of rows in a row group."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=group)
    return sink.getvalue().to_pybytes()


def to_ipc(table: Any, new: Any = pa.ipc.new_file, **options: Any) -> bytes:
    """Return a table as an Arrow IPC file, or with `pa.ipc.new_stream` as a stream."""
    sink = pa.BufferOutputStream()
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=4)
    return sink.getvalue().to_pybytes()


def to_csv(rows: Sequence[dict[str, Any]], delimiter: str = ",", end: str = "\r\n") -> bytes:
    """Return rows as CSV, with the names of the first one's columns."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, rows[0], delimiter=delimiter, lineterminator=end)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()
