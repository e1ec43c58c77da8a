"""Carried columns: columns of the sources that are in the document tables, after our own.

Their names and types, and what may be called so. `shards.format.manifest` has them as metadata.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

if TYPE_CHECKING:
    import pyarrow as pa

CarriedType = Literal["string", "int64", "float64", "bool"]
CARRIED_TYPES: tuple[CarriedType, ...] = get_args(CarriedType)

OWN_COLUMNS = ("start", "length", "source", "unit", "row", "hash")
"""Columns of every document table."""
RESERVED_NAMES = (*OWN_COLUMNS, "input_ids")
"""Names that no carried column has; `input_ids` are the tokens in an export to Parquet."""
MAX_NAME = 200
"""Characters of a carried column's name."""


def find_name_faults(names: Iterable[str]) -> list[str]:
    """Return what is wrong with the names of carried columns of a set, each fault with its remedy.

    Letters' case does not distinguish names: DuckDB, for one, does not look at it.
    """
    faults: list[str] = []
    seen: dict[str, str] = {}
    for name in names:
        if not name or len(name) > MAX_NAME or not name.isprintable():
            faults.append(f"{name!r:.250}: expected a name of 1 to {MAX_NAME} printable characters")
        elif name.casefold() in RESERVED_NAMES:
            # Our own columns would be overwritten.
            own = ", ".join(RESERVED_NAMES)
            faults.append(
                f"{name!r}: the document tables have columns of their own of the names {own}. Leave it out, or rename "
                "it in the files"
            )
        elif (other := seen.setdefault(name.casefold(), name)) != name:
            faults.append(f"{name!r} differs from {other!r} in case alone. Leave one out, or rename it in the files")
    return faults


def arrow_type(kind: CarriedType) -> pa.DataType:
    """Return the Arrow type of a carried column; strings have offsets of 64 bits, so that no table is too large."""
    import pyarrow as pa

    types = {"string": pa.large_string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}
    return types[kind]


def null_values(kind: CarriedType, count: int) -> Any:
    """Return a carried column of a type that is all null, `(count,)`."""
    import pyarrow as pa

    dtype: Any = arrow_type(kind)
    return cast("Any", pa).nulls(count, dtype)


def carried_fields(columns: Mapping[str, CarriedType]) -> list[pa.Field[Any]]:
    """Return the Arrow fields of carried columns, which hold nulls."""
    import pyarrow as pa

    return [pa.field(name, arrow_type(kind)) for name, kind in columns.items()]
