"""Carried values of a run: two files next to its rows, in their order.

`carried.bin` has the values as record batches of Arrow IPC, `_BATCH_DOCUMENTS` documents each; `carried_places.bin`
says where each batch begins, and where the last one ends. So any range of documents is one contiguous range of both
files.

Memory to write: the values of the unit. To read: the values of the documents that are read, and of a batch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_numbers
from pipeline.engine.checksums import ChecksummedWriter, WrittenFile, write_checksummed
from pipeline.sources.base import Columns
from shards.format.carried import carried_fields

if TYPE_CHECKING:
    import numpy.typing as npt

    from pipeline.engine.receipts import TaskOutput

CARRIED_FILE = "carried.bin"
CARRIED_PLACES_FILE = "carried_places.bin"
VALUE_BYTES = 8
"""Bytes of a value in a run, about: a number, or where a text ends."""
_BATCH_DOCUMENTS = 512
"""Documents in a batch: with a URL each, its size is that of the blocks in which files are read."""


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
    table = pa.concat_tables([_schema(columns).empty_table(), *parts]).combine_chunks()
    places = [0]
    with ChecksummedWriter(folder / CARRIED_FILE) as file:
        for first in range(0, len(order), _BATCH_DOCUMENTS):
            chosen = wrap_numbers(pa.int64(), order[first : first + _BATCH_DOCUMENTS])
            (batch,) = table.take(chosen).combine_chunks().to_batches()
            data = batch.serialize()
            file.write(memoryview(data))
            places.append(places[-1] + data.size)
    written = write_checksummed(folder / CARRIED_PLACES_FILE, np.array(places, np.uint64).tobytes())
    return {CARRIED_FILE: file.facts(), CARRIED_PLACES_FILE: written}


def read_carried(output: TaskOutput[Any], columns: Columns, first: int, last: int) -> pa.Table:
    """Read the values of the documents [first, last) of a run, a row each.

    Raises:
        WorkFileDamagedError: the files are not as they were written.
    """
    schema = _schema(columns)
    if first == last:
        return schema.empty_table()
    # Whole batches are read, of which the first and the last may have documents that nobody asked for.
    begin, end = first // _BATCH_DOCUMENTS, -(-last // _BATCH_DOCUMENTS)
    size = np.dtype(np.uint64).itemsize
    places = np.frombuffer(output.read(CARRIED_PLACES_FILE, begin * size, (end + 1) * size), np.uint64).tolist()
    data = output.read(CARRIED_FILE, places[0], places[-1])
    messages = (data[start - places[0] : stop - places[0]] for start, stop in itertools.pairwise(places))
    batches = [pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages]
    return pa.Table.from_batches(batches, schema).slice(first - begin * _BATCH_DOCUMENTS, last - first)


def _schema(columns: Columns) -> pa.Schema:
    return pa.schema(carried_fields(dict(columns)))
