"""The size of carried columns: bytes per document in its run, and in the set's document tables."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.arrow_arrays import wrap_numbers
from pipeline.encode.run_carried import VALUE_BYTES
from pipeline.recipe.schema import SourceRecipe

GUESSED_BYTES = 100
"""A value before it is read: most carried text is a URL or a name."""

COLUMN_BYTES = 250
"""The fixed size of a column in a document table, about: its name, its type and its place, twice."""


@dataclass(frozen=True, slots=True)
class CarriedBytes:
    """Bytes of a document's carried values."""

    run: float = 0.0
    set: float = 0.0
    """Compressed, in a document table."""


def guess_carried(source: SourceRecipe) -> CarriedBytes:
    """Return an estimate of the bytes before any value is read: rather too many than too few."""
    if not source.carry:
        return CarriedBytes()
    size = (VALUE_BYTES + GUESSED_BYTES) * len(source.carry)
    return CarriedBytes(size, size)


def measure_carried(tables: list[pa.Table], source: SourceRecipe) -> CarriedBytes:
    """Return the bytes by the values of some documents, compressed as a document table compresses them.

    Args:
        tables: the values, one table after the other.
        source: their source.
    """
    import pyarrow.compute as pc  # late: the build's own process needs it seldom, and it takes 0.06 s

    # Uncompressed in a run, where each value is text; compressed in the set.
    rows = sum(table.num_rows for table in tables)
    if not rows:
        return guess_carried(source)
    table = pa.concat_tables(tables)
    texts = (column for column in table.columns if column.type == pa.large_string())
    text = sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in texts)
    # A shard's documents are in an order of their own, in which neighbours have little in common.
    order = np.random.default_rng(0).permutation(rows)
    buffer = io.BytesIO()
    shuffled = table.take(wrap_numbers(pa.int64(), order))
    pq.write_table(shuffled, buffer, compression="zstd", use_dictionary=False, write_statistics=False)
    return CarriedBytes(VALUE_BYTES * table.num_columns + text / rows, buffer.tell() / rows)
