"""Check over the hashes of the whole set that no document is in both splits, or in one split more often than allowed.

The check works in partitions by hash value, so that at most about `PARTITION_DOCUMENTS` hashes are in memory at once. A
larger set reads the hash column once for each partition. Costs about 0.15 s for a million documents.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np

from shards.errors import Problem, ProblemKind, ShardSetError
from shards.format.documents import iter_documents, number_sources
from shards.format.hashes import split_column
from shards.format.reader import Shard

if TYPE_CHECKING:
    import numpy.typing as npt

PARTITION_DOCUMENTS = 1 << 23
"""Hashes in memory at once: 8 M with their shard and row peak at 0.8 GB, measured on sets of 16 M and 32 M."""

MAX_REPORTED = 20
"""Maximum documents named for each kind of fault; the last problem says how many there are in all."""

MAX_MEMBERS = 8
"""Maximum places named for each of these documents."""


def check_duplicates(shards: Sequence[Shard], epochs: Mapping[str, int]) -> list[Problem]:
    """Check how often each document occurs.

    Args:
        shards: shards whose document tables are sound.
        epochs: how often a training document of each source may occur; 1 for a source that is not listed.

    Returns:
        `split_leak` for a document in train and val; `document_repeated` for a document that occurs twice in val, or
        more often in train than its source's epochs (the largest of them, if the document belongs to several sources).
    """
    documents = sum(shard.num_documents for shard in shards)
    partitions = max(1, -(-documents // PARTITION_DOCUMENTS))
    faults = _Faults()
    for partition in range(partitions):
        try:
            rows = _gather(shards, epochs, partition, partitions)
        except ShardSetError as error:
            return error.problems
        _compare(rows, shards, faults)
    return faults.to_problems()


@dataclass
class _Faults:
    """Faults found so far. All are counted; only the first are described, so that memory does not grow with them."""

    leaks: int = 0
    repeats: int = 0
    problems: list[Problem] = field(default_factory=list[Problem])

    def to_problems(self) -> list[Problem]:
        """Return the described faults, and for each kind with more of them a problem that states the count."""
        problems = list(self.problems)
        kinds: tuple[tuple[ProblemKind, int, str], ...] = (
            ("split_leak", self.leaks, "are in both splits"),
            ("document_repeated", self.repeats, "are repeated"),
        )
        for kind, count, what in kinds:
            if count > MAX_REPORTED:
                message = f"{count} documents in all {what}; the first {MAX_REPORTED} are listed"
                problems.append(Problem(kind, "all shards", message))
        return problems


@dataclass
class _Rows:
    """The documents of one partition, column by column: a hash's two halves, shard, row, how often it may occur."""

    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]
    shard: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]
    allowed: npt.NDArray[np.int32]


def _gather(shards: Sequence[Shard], epochs: Mapping[str, int], partition: int, partitions: int) -> _Rows:
    """Read the hashes whose leading 32 bits fall in one of `partitions` equal ranges."""
    empty = np.empty(0, np.uint64)
    no_ids = np.empty(0, np.int32)
    parts = [_Rows(empty, empty, no_ids, no_ids, no_ids)]
    limits = {name: min(count, 1 << 30) for name, count in epochs.items()}
    for number, shard in enumerate(shards):
        first = 0
        for batch in iter_documents(shard, ["source", "hash"]):
            high, low = split_column(batch.column("hash")).T
            allowed = number_sources(shard, batch, limits, default=1).astype(np.int32)
            row = np.arange(first, first + len(high), dtype=np.int32)
            first += len(high)
            if partitions > 1:
                mine = ((high >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32) == np.uint64(partition)
                high, low, row, allowed = high[mine], low[mine], row[mine], allowed[mine]
            parts.append(_Rows(high, low, np.full(len(high), number, np.int32), row, allowed))
    columns = {column.name: [getattr(part, column.name) for part in parts] for column in fields(_Rows)}
    return _Rows(**{name: np.concatenate(arrays) for name, arrays in columns.items()})


def _compare(rows: _Rows, shards: Sequence[Shard], faults: _Faults) -> None:
    """Find the hashes that occur more than once, then look at those alone."""
    ordered = np.sort(rows.high)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(repeated):
        return
    place = np.minimum(np.searchsorted(repeated, rows.high), len(repeated) - 1)
    some = np.flatnonzero(repeated[place] == rows.high)
    val_shards = np.array([shard.entry.split == "val" for shard in shards], np.bool_)
    in_train_split = ~np.take(val_shards, rows.shard[some])
    # Sort by hash; within a hash val before train, then in the set's order.
    order = some[np.lexsort((rows.row[some], rows.shard[some], in_train_split, rows.low[some], rows.high[some]))]
    high, low = rows.high[order], rows.low[order]
    new = np.flatnonzero(np.r_[True, (high[1:] != high[:-1]) | (low[1:] != low[:-1])])
    in_val = np.add.reduceat(np.take(val_shards, rows.shard[order]).astype(np.int64), new)
    in_train = np.diff(np.r_[new, len(order)]) - in_val
    allowed = np.maximum.reduceat(rows.allowed[order], new)
    leaks = np.flatnonzero((in_val > 0) & (in_train > 0))
    repeats = np.flatnonzero((in_val > 1) | (in_train > allowed))

    def describe(group: int) -> tuple[str, str]:
        begin, count = int(new[group]), int(in_val[group] + in_train[group])
        places: list[str] = []
        for member in order[begin : begin + min(count, MAX_MEMBERS)].tolist():
            places.append(f"{shards[int(rows.shard[member])].name} document {int(rows.row[member])}")
        message = (
            f"document {int(high[begin]):016x}{int(low[begin]):016x} occurs {in_val[group]} times in val and "
            f"{in_train[group]} in train ({', '.join(places)}{', ...' if count > MAX_MEMBERS else ''})"
        )
        return places[-1], message

    for group in leaks[: max(0, MAX_REPORTED - faults.leaks)].tolist():
        where, message = describe(group)
        faults.problems.append(Problem("split_leak", where, f"{message}; expected it in one of the two"))
    for group in repeats[: max(0, MAX_REPORTED - faults.repeats)].tolist():
        where, message = describe(group)
        faults.problems.append(
            Problem("document_repeated", where, f"{message}; expected at most 1 and {allowed[group]}")
        )
    faults.leaks += len(leaks)
    faults.repeats += len(repeats)
