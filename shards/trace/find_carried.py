"""Find the documents of a set by their carried values: a URL, the beginning of one, a pattern.

Costs one pass over the columns asked for and `hash` of the document tables; tokens are not read.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.errors import InputError
from shards.format.carried import CarriedType, null_values
from shards.format.document_table import iter_documents, read_hashes
from shards.format.reader import ShardSet
from shards.terminal.reporter import Progress, no_progress
from shards.trace.locate import Place, find_places
from shards.workers import map_tasks

if TYPE_CHECKING:
    import numpy.typing as npt


_CONDITION = re.compile(r"(.+?)(\^=|~=|=)(.*)", re.DOTALL)
EXPECTED = "expected COLUMN=VALUE, COLUMN^=BEGINNING or COLUMN~=PATTERN"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a carried column: `=` equal, `^=` begins with, `~=` holds a match of a pattern of RE2.

    A null never holds.
    """

    column: str
    operator: str
    value: str

    def __str__(self) -> str:
        return f"{self.column}{self.operator}{self.value}"


@dataclass
class CarriedHits:
    """The documents found: the first ones (`shown`), and `hashes` uint8 `(documents, 16)` of all."""

    conditions: tuple[Condition, ...]
    documents: int = 0
    sources: Counter[str] = field(default_factory=Counter[str])
    shown: list[Place] = field(default_factory=list[Place])
    hashes: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 16), np.uint8))

    @property
    def asked(self) -> str:
        """The command's flags and values."""
        return " ".join(f"--where {condition}" for condition in self.conditions)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that `trace --where --json` prints."""
        return {
            "query": {"kind": "where", "conditions": list(map(str, self.conditions))},
            "documents": self.documents,
            "sources": dict(self.sources),
            "shown": [place.to_dict() for place in self.shown],
        }


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
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise InputError(f"--where {text!r:.200}: {EXPECTED}")
    condition = Condition(*match.groups())
    kind = carried.get(condition.column)
    if kind is None:
        there = ", ".join(f"{name} ({own})" for name, own in carried.items())
        raise InputError(f"--where {text!r:.200}: the set carries no column {condition.column!r}; there are {there}.")
    if condition.operator != "=" and kind != "string":
        raise InputError(f"--where {text!r:.200}: {condition.operator} is for text, and the column is {kind}. Use =.")
    if condition.operator == "^=" and not condition.value:
        raise InputError(f"--where {text!r:.200}: every text begins so. Give at least one character.")
    try:
        _mask(condition, kind, null_values(kind, 1))
    except ValueError as error:  # Arrow's errors are of this type
        raise InputError(f"--where {text!r:.200}: {condition.value!r:.100} does not fit: {error}") from error
    return condition


def find_carried(
    shard_set: ShardSet,
    conditions: tuple[Condition, ...],
    *,
    limit: int | None = 20,
    workers: int = 1,
    progress: Progress = no_progress,
) -> CarriedHits:
    """Return the documents for which all conditions hold, in the set's order.

    Args:
        shard_set: the set.
        conditions: as `parse_conditions` returns them.
        limit: how many documents to describe; all when None. All are counted.
        workers: number of processes; the result does not depend on it.
        progress: called with documents done and documents in all.

    Raises:
        ShardSetError: a document table is not what the manifest says.
        OSError: a file cannot be read.
    """
    found = CarriedHits(conditions)
    hashes: list[npt.NDArray[np.uint8]] = []
    total, done = sum(shard.num_documents for shard in shard_set.shards), 0
    shared = (shard_set, conditions, limit)
    for number, (own, sources, places) in map_tasks(_search, shared, range(len(shard_set.shards)), workers):
        hashes.append(own)
        found.sources.update(sources)
        found.shown += places if limit is None else places[: limit - len(found.shown)]
        done += shard_set.shards[number].num_documents
        progress(done, total)
    found.hashes = np.concatenate([found.hashes, *hashes])
    found.documents = len(found.hashes)
    names = [source.name for source in shard_set.manifest.sources]
    found.sources = Counter({name: found.sources[name] for name in names if found.sources[name]})
    return found


def _search(
    shared: tuple[ShardSet, tuple[Condition, ...], int | None], number: int
) -> tuple[npt.NDArray[np.uint8], Counter[str], list[Place]]:
    shard_set, conditions, limit = shared
    shard = shard_set.shards[number]
    columns = list(dict.fromkeys(condition.column for condition in conditions))
    hashes = [np.empty((0, 16), np.uint8)]
    sources: Counter[str] = Counter()
    numbers: list[int] = []
    first = 0
    for batch in iter_documents(shard, ["source", "hash", *columns]):
        masks = (_mask(item, shard.carried[item.column], batch.column(item.column)) for item in conditions)
        rows = np.flatnonzero(np.logical_and.reduce(list(masks)))
        if len(rows):
            hashes.append(read_hashes(batch)[rows])
            source = batch.column("source")
            names = source.dictionary.to_pylist()
            sources.update(names[code] for code in np.from_dlpack(source.indices)[rows].tolist())
            room = len(rows) if limit is None else max(0, limit - len(numbers))
            numbers += (first + rows[:room]).tolist()
        first += batch.num_rows
    return np.concatenate(hashes), sources, find_places(shard, numbers) if numbers else []


def _mask(condition: Condition, kind: CarriedType, column: Any) -> npt.NDArray[np.bool_]:
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
