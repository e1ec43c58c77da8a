"""The limits of the names in a document table, in its dictionaries `source` and `unit`, whoever made the set."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from typing import Any

import numpy as np

NAME_COLUMNS = ("source", "unit")
MAX_NAME_BYTES = 1 << 16
"""A longer value of `source` or `unit` is refused: it is copied for batches and messages. A path has at most 4,096."""

NAMES_BYTES, NAME_BYTES = 1 << 24, 1 << 10
"""A row group's values of such a column take at most this, and this for each row; it is known before they are read."""

_NAMES = "dictionary<values=string, indices=int32, ordered=0>"


def find_large_names(metadata: Any) -> str:
    """Return what is wrong with the size of a document table's names, by its footer; empty if nothing is."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        most = NAMES_BYTES + NAME_BYTES * group.num_rows
        for column in map(group.column, range(group.num_columns)):
            name, size = column.path_in_schema, column.total_uncompressed_size
            if name in NAME_COLUMNS and size > most:
                return (
                    f"the values of {name} take {size:,} bytes for {group.num_rows:,} rows; expected at most {most:,}"
                )
    return ""


def find_long_name(batch: Any) -> str:
    """Return which value of a batch of a document table is too long, or no name at all; empty if none is."""
    for name in sorted({*NAME_COLUMNS} & {*batch.schema.names}):
        if str(found := batch.column(name).type) != _NAMES:
            return f"{name} is {found}; expected {_NAMES}"
        texts = batch.column(name).dictionary
        ends = np.frombuffer(texts.buffers()[1] or b"", np.int32)[texts.offset :][: len(texts) + 1]
        if (longest := int(np.diff(ends).max(initial=0))) > MAX_NAME_BYTES:
            return f"a value of {name} has {longest:,} bytes; expected at most {MAX_NAME_BYTES:,}"
    return ""
