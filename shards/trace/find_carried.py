"""Find the documents of a set by their carried values: a URL, the beginning of one, a pattern.

Costs one pass over the columns asked for and `hash` of the document tables; tokens are not read.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from shards.errors import InputError
from shards.format.arrays import Bools
from shards.format.carried import CarriedType, null_values
from shards.format.document_table import iter_documents, number_sources, read_hashes
from shards.format.reader import ShardSet
from shards.terminal.reporter import Progress, no_progress
from shards.trace.locate import find_places
from shards.trace.search import ShardHits
from shards.trace.trace import Trace, trace_shards

_CONDITION = re.compile(r"(.+?)(\^=|~=|=)(.*)", re.DOTALL)


class Condition(NamedTuple):
    """A condition on a carried column: `=` equal, `^=` begins with, `~=` holds a match of a pattern of RE2.

    A null never holds.
    """

    column: str
    operator: str
    value: str

    def __str__(self) -> str:
        return "".join(self)


def parse_conditions(texts: list[str], shard_set: ShardSet) -> tuple[Condition, ...]:
    """Return the conditions that a person gives, checked against a set's carried columns.

    Raises:
        InputError: a condition is malformed, its column is not carried, or its value is not of the column's type.
    """
    carried: dict[str, CarriedType] = {column.name: column.type for column in shard_set.manifest.carried}
    if not carried:
        raise InputError(
            'trace: the set carries no column. Build it again with carry = ["url"] in its sources, or use --text.'
        )
    return tuple(_parse(text, carried) for text in texts)


def _parse(text: str, carried: dict[str, CarriedType]) -> Condition:
    # The first operator in the text counts: a value may hold others.
    match = _CONDITION.fullmatch(text)
    place = f"--where {text!r:.200}"
    if match is None:
        raise InputError(f"{place}: expected COLUMN=VALUE, COLUMN^=BEGINNING or COLUMN~=PATTERN")
    condition = Condition(*match.groups())
    kind = carried.get(condition.column)
    if kind is None:
        there = ", ".join(f"{name} ({own})" for name, own in carried.items())
        raise InputError(f"{place}: the set carries no column {condition.column!r}; there are {there}.")
    if condition.operator != "=" and kind != "string":
        raise InputError(f"{place}: {condition.operator} is for text, and the column is {kind}. Use =.")
    if condition.operator == "^=" and not condition.value:
        raise InputError(f"{place}: every text begins so. Give at least one character.")
    # Tried on one null: the value and the pattern are checked as the search will use them.
    try:
        _mask(condition, kind, null_values(kind, 1))
    except ValueError as error:  # Arrow's errors are of this type
        raise InputError(f"{place}: {condition.value!r:.100} does not fit: {error}") from error
    return condition


def find_carried(
    shard_set: ShardSet,
    conditions: tuple[Condition, ...],
    *,
    limit: int | None = 20,
    workers: int = 1,
    progress: Progress = no_progress,
) -> Trace:
    """Return the documents for which all conditions hold, in the set's order; each counts as one hit.

    Args:
        shard_set: the set.
        conditions: as `parse_conditions` returns them.
        limit: how many documents to describe; all when None. All are counted.
        workers: number of processes; the result does not depend on it.
        progress: called with tokens of the shards done and tokens in all.

    Raises:
        ShardSetError: a document table is not what the manifest says.
        OSError: a file cannot be read.
    """
    texts = list(map(str, conditions))
    asked = " ".join(f"--where {text}" for text in texts)
    found = Trace(asked, {"kind": "where", "conditions": texts})
    shared = (shard_set, conditions, limit)
    return trace_shards(found, _search, shared, shard_set, limit=limit, workers=workers, progress=progress)


def _search(shared: tuple[ShardSet, tuple[Condition, ...], int | None], number: int) -> ShardHits:
    shard_set, conditions, limit = shared
    shard = shard_set.shards[number]
    codes = shard_set.source_numbers
    columns = dict.fromkeys(condition.column for condition in conditions)
    hashes = [np.empty((0, 16), np.uint8)]
    counts = np.zeros(len(codes), np.int64)
    numbers: list[int] = []
    first = 0
    for batch in iter_documents(shard, ["source", "hash", *columns]):
        masks = [_mask(item, shard.carried[item.column], batch.column(item.column)) for item in conditions]
        rows = np.flatnonzero(np.logical_and.reduce(masks))
        hashes.append(read_hashes(batch)[rows])
        counts += np.bincount(number_sources(shard, batch, codes)[rows], minlength=len(codes))
        numbers += (first + rows).tolist()
        if limit is not None:
            del numbers[limit:]  # the rest is only counted
        first += batch.num_rows
    return ShardHits(counts, counts, np.concatenate(hashes), [*find_places(shard, numbers)])


def _mask(condition: Condition, kind: CarriedType, column: Any) -> Bools:
    """Return for which values of a column a condition holds, `(len(column),)`.

    Raises:
        ValueError: the condition's value is not of the column's type, or its pattern is not valid.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if condition.operator == "^=":
        holds = pc.starts_with(column, pattern=condition.value)
    elif condition.operator == "~=":
        holds = pc.match_substring_regex(column, pattern=condition.value)
    else:
        scalar = pa.scalar(condition.value, pa.large_string())
        value = scalar if kind == "string" else scalar.cast(pa.scalar(None, column.type).type)
        holds = pc.equal(column, value.cast(column.type))
    return holds.fill_null(False).to_numpy(zero_copy_only=False).astype(bool)
