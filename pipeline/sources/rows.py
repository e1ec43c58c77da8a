"""Rows that a Python program gives, as a source: a Parquet file in the work folder, named by the digest of its bytes.

Equal rows give the same file, which is then kept: nothing runs again. Memory: `GROUP_BYTES` of text or one row.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from shards.errors import InputError
from shards.stores.files import atomic_open, hash_file, lock_folder, make_folder
from shards.stores.parse import check_values

GROUP_BYTES = 16 << 20
"""Text of a row group, in which each row counts for `_ROW_BYTES` more."""
_ROW_BYTES = 1000


def write_rows(rows: Iterable[Mapping[str, Any]], folder: Path, name: str) -> Path:
    """Write the rows of a source to a file of a folder, and return it. It is there when all rows have been written.

    Args:
        rows: dicts; the keys of the first are the columns, and the first row group decides their types.
        folder: where the file goes; an earlier one of the source is deleted.
        name: the source's name.

    Raises:
        InputError: there is no row, one is no dict, or has other types than the first ones.
        OSError: the disk is full or not writable.
        Whatever the rows raise.
    """
    make_folder(folder)
    with lock_folder(folder):
        fresh = folder / ".new"
        with atomic_open(fresh) as file:
            _write_groups(file, rows, f"sources[{name!r}]")
        path = folder / f"{hash_file(fresh)[:16]}.parquet"
        # A file that is there keeps its time, so that it counts as unchanged.
        if not path.exists():
            fresh.rename(path)
        for old in folder.iterdir():
            if old != path:
                old.unlink()
        return path


def _write_groups(file: BinaryIO, rows: Any, where: str) -> None:
    if not isinstance(rows, Iterable):
        raise InputError(f"{where} is {rows!r:.100}; expected an iterable of dicts, such as [{{'text': '...'}}].")
    schema: pa.Schema | None = None
    writer: Any = None
    number = size = first = 0

    def find_group(row: Any) -> int:
        nonlocal number, size
        number += 1
        if not isinstance(row, Mapping):
            raise InputError(f"{where}: row {number:,} is {row!r:.100}; expected a dict, such as {{'text': '...'}}.")
        for value in row.values():
            size += len(value) if isinstance(value, str) else 0
            if isinstance(value, dict | list | tuple):
                try:
                    check_values(value)  # Arrow follows a value that contains itself until the process ends
                except ValueError as error:
                    raise InputError(f"{where}: row {number:,}: {error}. Change it.") from error
        size += _ROW_BYTES
        return size // GROUP_BYTES

    try:
        for _, rows_of_group in itertools.groupby(rows, find_group):
            group = list(map(dict, rows_of_group))
            try:
                table = pa.Table.from_pylist(group, schema=schema)
            except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
                raise InputError(
                    f"{where}: rows {first + 1:,} to {first + len(group):,}: {error}. Expected in each column values "
                    "of the type that the first rows have."
                ) from error
            first += len(group)
            schema = table.schema
            writer = writer or pq.ParquetWriter(file, schema, compression="zstd")
            writer.write_table(table)
    finally:
        if writer:  # left open, it would print a traceback when it is collected
            writer.close()
    if writer is None:
        raise InputError(f"{where}: there are no rows. An iterator can be read only once: make a new one.")
