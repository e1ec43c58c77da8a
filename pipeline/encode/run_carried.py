"""Carried values of a run: two files next to its rows, in their order.

`carried.bin` has one row of fixed size a document: where its text begins, and for each column whether it has a value,
and the value in 8 bytes; for text, its length. `carried_text.bin` has the text of all, document by document. So any
range of documents is one contiguous range of both files, as it is of the run's tokens.

Memory to write: the values of the unit. To read: the values of the documents that are read.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_numbers
from pipeline.engine.checksums import ChecksummedWriter, WrittenFile
from pipeline.sources.base import Columns
from shards.format.carried import CarriedType, arrow_type, null_values

if TYPE_CHECKING:
    import numpy.typing as npt

    from pipeline.engine.receipts import TaskOutput

CARRIED_FILE = "carried.bin"
CARRIED_TEXT_FILE = "carried_text.bin"
_WRITE_DOCUMENTS = 1 << 15
"""Documents whose text is put in order at once."""


def row_dtype(columns: int) -> np.dtype[np.void]:
    """Return the type of a row of `carried.bin` with this many columns."""
    return np.dtype([("start", "<u8"), ("valid", "u1", (columns,)), ("value", "<u8", (columns,))])


def write_carried(
    folder: Path, parts: list[pa.Table], columns: Columns, order: npt.NDArray[np.int64]
) -> dict[str, WrittenFile]:
    """Write the values of a run, and return the files' entries.

    Args:
        folder: the run's folder.
        parts: the values of its documents as they were read, one after the other.
        columns: the columns of each part.
        order: the run's documents, by their places in the parts.
    """
    # A row for each document: which columns have a value, and the 8 bytes of each.
    table = pa.concat_tables(parts).combine_chunks() if parts else None
    rows = np.zeros(len(order), row_dtype(len(columns)))
    texts: dict[int, pa.LargeStringArray] = {}
    for number, (_, kind) in enumerate(columns if table is not None else ()):
        assert table is not None
        column = table.column(number).combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        rows["valid"][:, number] = column.is_valid().to_numpy(zero_copy_only=False)[order]
        values, text = _numbers_of(column, kind)
        rows["value"][:, number] = values[order]
        if text is not None:
            texts[number] = text
    # Where the text of each document begins, in all columns of text together.
    sizes = rows["value"][:, list(texts)].sum(axis=1, dtype=np.uint64)
    rows["start"] = np.cumsum(sizes, dtype=np.uint64) - sizes
    with ChecksummedWriter(folder / CARRIED_FILE) as file:
        file.write(rows.tobytes())
    with ChecksummedWriter(folder / CARRIED_TEXT_FILE) as text_file:
        for first in range(0, len(order) if texts else 0, _WRITE_DOCUMENTS):
            text_file.write(_join_texts(list(texts.values()), order[first : first + _WRITE_DOCUMENTS]))
    return {CARRIED_FILE: file.facts(), CARRIED_TEXT_FILE: text_file.facts()}


def _numbers_of(column: Any, kind: CarriedType) -> tuple[npt.NDArray[np.uint64], pa.LargeStringArray | None]:
    """Return the 8 bytes of each value, 0 for nulls; and the texts of a column of text, empty for nulls."""
    if kind == "string":
        column = column.fill_null("")
        return np.diff(_offsets(column)).astype(np.uint64), column
    filled = column.fill_null(pa.scalar(0).cast(column.type)).to_numpy(zero_copy_only=False)
    return (filled.astype(np.uint64) if kind == "bool" else np.ascontiguousarray(filled).view(np.uint64)), None


def _offsets(column: Any) -> npt.NDArray[np.int64]:
    buffer = column.buffers()[1]
    if not len(column):
        return np.zeros(1, np.int64)
    return np.frombuffer(buffer, np.int64)[column.offset : column.offset + len(column) + 1]


def _join_texts(texts: list[pa.LargeStringArray], chosen: npt.NDArray[np.int64]) -> memoryview:
    """Return the texts of some documents, end to end: first the first document's, in all columns."""
    taken = [column.take(wrap_numbers(pa.int64(), chosen)) for column in texts]
    together = taken[0] if len(taken) == 1 else pa.concat_arrays(taken)
    interleaved = np.arange(len(together)).reshape(len(texts), -1).T.ravel()
    together = together.take(wrap_numbers(pa.int64(), interleaved))
    offsets = _offsets(together)
    return memoryview(together.buffers()[2] or b"")[int(offsets[0]) : int(offsets[-1])]


@dataclass(frozen=True, slots=True)
class CarriedRows:
    """The carried values of consecutive documents of a run."""

    columns: Columns
    rows: npt.NDArray[np.void]
    """`row_dtype (documents,)`."""
    text: memoryview
    """The text of all these documents."""

    def take(self, chosen: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the values of some of the documents, an Arrow array for each column."""
        if not len(chosen):
            return {name: null_values(kind, 0) for name, kind in self.columns}
        # Cut the text of the range into one piece for each document and column of text.
        low, high = int(chosen[0]), int(chosen[-1]) + 1
        rows, chosen = self.rows[low:high], chosen - low
        texts = [number for number, (_, kind) in enumerate(self.columns) if kind == "string"]
        pieces = _cut_texts(rows["value"][:, texts], self.text[int(rows["start"][0] - self.rows["start"][0]) :])
        # Make the Arrow buffers of each column: a mask of the values that are there, and the values.
        found: dict[str, Any] = {}
        for number, (name, kind) in enumerate(self.columns):
            valid = rows["valid"][chosen, number].astype(bool)
            values = np.ascontiguousarray(rows["value"][chosen, number])
            if kind == "string":
                indices = chosen * len(texts) + texts.index(number)
                column = pieces.take(wrap_numbers(pa.int64(), indices))
                buffers = column.buffers()[1:]
            else:
                data = np.packbits(values.astype(bool), bitorder="little") if kind == "bool" else values
                buffers = [pa.py_buffer(data.data)]
            mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").data)
            found[name] = pa.Array.from_buffers(arrow_type(kind), len(chosen), [mask, *buffers])
        return found


def _cut_texts(lengths: npt.NDArray[np.uint64], text: memoryview) -> Any:
    """Return the texts of some documents as one array, `(documents * columns of text,)`."""
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths.ravel(), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(text[: int(offsets[-1])])]
    return pa.Array.from_buffers(pa.large_string(), lengths.size, buffers)


def read_carried(output: TaskOutput[Any], columns: Columns, first: int, last: int) -> CarriedRows:
    """Read the values of the documents [first, last) of a run.

    Raises:
        WorkFileDamagedError: the files are not as they were written.
    """
    dtype = row_dtype(len(columns))
    rows = np.frombuffer(output.read(CARRIED_FILE, first * dtype.itemsize, last * dtype.itemsize), dtype)
    if not len(rows):
        return CarriedRows(columns, rows, memoryview(b""))
    texts = [number for number, (_, kind) in enumerate(columns) if kind == "string"]
    start = int(rows["start"][0])
    stop = int(rows["start"][-1]) + int(rows["value"][-1, texts].sum(dtype=np.uint64))
    return CarriedRows(columns, rows, output.read(CARRIED_TEXT_FILE, start, stop))
