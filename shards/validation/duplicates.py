"""Check over the hashes of the whole set that no document is in both splits, or in one split more often than allowed.

The check works in partitions by hash value, so that at most about `PARTITION_DOCUMENTS` hashes are in memory at once. A
partition reads the hash column of the shards that have documents in it, and nothing of another partition, so that
partitions can be compared in any place and order. The documents of a set that we built are in hash order, so that most
of its shards are in one or two partitions; if it is not known which, each is taken to be in all. Costs about 0.15 s for
a million documents.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from shards.errors import Problem, ProblemKind, ShardSetError, plural
from shards.format.content_hash import split_column
from shards.format.document_table import iter_documents, number_sources
from shards.format.reader import Shard
from shards.stores.store import reads_at_once
from shards.workers import map_in_threads

if TYPE_CHECKING:
    import numpy.typing as npt

PARTITION_DOCUMENTS = 1 << 23
"""Hashes in memory at once: 8 M with their shard and row peak at 0.8 GB, measured on sets of 16 M and 32 M."""

MAX_REPORTED = 20
"""Maximum documents named for each kind of fault; the last problem says how many there are in all."""

MAX_MEMBERS = 8
"""Maximum places named for each of these documents."""


COVERAGE_BITS = 10
"""Leading bits of a hash: coverage tells 1,024 ranges of hashes apart."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One of equal ranges of all hashes, by their leading 32 bits."""

    number: int
    count: int

    def takes(self, high: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which hashes are in the range, by their leading halves."""
        return ((high >> np.uint64(32)) * np.uint64(self.count)) >> np.uint64(32) == np.uint64(self.number)

    @property
    def coverage(self) -> int:
        """The ranges of a coverage that this one meets, as bits."""
        first = (self.number << COVERAGE_BITS) // self.count
        last = -(-((self.number + 1) << COVERAGE_BITS) // self.count)
        return (1 << last) - (1 << first)


@dataclass(frozen=True, slots=True)
class PartitionFaults:
    """Faults in one partition. All are counted; the first are described, so that memory does not grow with them."""

    leaks: int = 0
    repeats: int = 0
    described_leaks: list[Problem] = field(default_factory=list[Problem])
    described_repeats: list[Problem] = field(default_factory=list[Problem])
    broken: list[Problem] = field(default_factory=list[Problem])
    """Why the partition could not be compared."""


def check_duplicates(
    shards: Sequence[Shard], epochs: Mapping[str, int], coverage: Sequence[int | None] = ()
) -> list[Problem]:
    """Check how often each document occurs, one partition after the other.

    Args:
        shards: shards whose document tables are sound.
        epochs: how often a training document of each source may occur; 1 for a source that is not listed.
        coverage: `cover_duplicates` of each shard's hashes, or None for one that is not known; none of them is known if
            empty.

    Returns:
        `split_leak` for a document in train and val; `document_repeated` for a document that occurs twice in val, or
        more often in train than its source's epochs (the largest of them, if the document belongs to several sources).
    """
    found: list[PartitionFaults] = []
    for partition, own in divide_for_duplicates(shards, coverage):
        found.append(compare_duplicates(own, epochs, partition))
        if found[-1].broken:
            break
    return join_duplicate_faults(found)


def cover_duplicates(high: npt.NDArray[np.uint64]) -> int:
    """Return which of the equal ranges of hashes these are in, by their leading halves: one bit for each range."""
    return sum(1 << int(number) for number in np.unique(high >> np.uint64(64 - COVERAGE_BITS)))


def divide_for_duplicates(
    shards: Sequence[Shard], coverage: Sequence[int | None] = ()
) -> list[tuple[Partition, list[Shard]]]:
    """Return the partitions of a set, each with the shards that may have documents in it, in order.

    Args:
        shards: as in `check_duplicates`.
        coverage: as there.
    """
    count = max(1, -(-sum(shard.num_documents for shard in shards) // PARTITION_DOCUMENTS))
    known = coverage or [None] * len(shards)
    partitions = [Partition(number, count) for number in range(count)]
    return [
        (
            partition,
            [
                shard
                for shard, own in zip(shards, known, strict=True)
                if count == 1 or own is None or own & partition.coverage
            ],
        )
        for partition in partitions
    ]


def compare_duplicates(shards: Sequence[Shard], epochs: Mapping[str, int], partition: Partition) -> PartitionFaults:
    """Compare the documents of one partition.

    Args:
        shards: those that may have documents in it, in the set's order.
        epochs: as in `check_duplicates`.
        partition: the range of hashes.
    """
    try:
        rows = _gather(shards, epochs, partition)
    except ShardSetError as error:
        return PartitionFaults(broken=error.problems)
    return _compare(rows, shards)


def join_duplicate_faults(found: Sequence[PartitionFaults]) -> list[Problem]:
    """Return the problems of all partitions, in order: the first of each kind, and how many there are of one with more.

    If a table could not be read, return the problems of the first such partition alone.
    """
    if broken := next((faults.broken for faults in found if faults.broken), None):
        return broken
    problems: list[Problem] = []
    leaks = repeats = 0
    for faults in found:
        problems += faults.described_leaks[: max(0, MAX_REPORTED - leaks)]
        problems += faults.described_repeats[: max(0, MAX_REPORTED - repeats)]
        leaks, repeats = leaks + faults.leaks, repeats + faults.repeats
    kinds: tuple[tuple[ProblemKind, int, str], ...] = (
        ("split_leak", leaks, "are in both splits"),
        ("document_repeated", repeats, "are repeated"),
    )
    for kind, count, what in kinds:
        if count > MAX_REPORTED:
            message = f"{plural(count, 'document')} in all {what}; the first {MAX_REPORTED} are listed"
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


def _gather(shards: Sequence[Shard], epochs: Mapping[str, int], partition: Partition) -> _Rows:
    """Read the documents of a partition."""
    limits = {name: min(count, 1 << 30) for name, count in epochs.items()}

    def read(number: int) -> list[_Rows]:
        shard, first, parts = shards[number], 0, list[_Rows]()
        for batch in iter_documents(shard, ["source", "hash"]):
            high, low = split_column(batch.column("hash")).T
            allowed = number_sources(shard, batch, limits, default=1).astype(np.int32)
            row = np.arange(first, first + len(high), dtype=np.int32)
            first += len(high)
            if partition.count > 1:
                mine = partition.takes(high)
                high, low, row, allowed = high[mine], low[mine], row[mine], allowed[mine]
            parts.append(_Rows(high, low, np.full(len(high), number, np.int32), row, allowed))
        return parts

    empty = np.empty(0, np.uint64)
    no_ids = np.empty(0, np.int32)
    threads = reads_at_once(shards[0].store) if shards else 1
    read_parts = chain.from_iterable(map_in_threads(read, range(len(shards)), threads))
    parts = [_Rows(empty, empty, no_ids, no_ids, no_ids), *read_parts]
    columns = {column.name: [getattr(part, column.name) for part in parts] for column in fields(_Rows)}
    return _Rows(**{name: np.concatenate(arrays) for name, arrays in columns.items()})


def _compare(rows: _Rows, shards: Sequence[Shard]) -> PartitionFaults:
    """Find the hashes that occur more than once, then look at those alone."""
    ordered = np.sort(rows.high)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(repeated):
        return PartitionFaults()
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
            f"document {int(high[begin]):016x}{int(low[begin]):016x} occurs {plural(in_val[group], 'time')} in val "
            f"and {in_train[group]} in train ({', '.join(places)}{', ...' if count > MAX_MEMBERS else ''})"
        )
        return places[-1], message

    described_leaks: list[Problem] = []
    for group in leaks[:MAX_REPORTED].tolist():
        where, message = describe(group)
        described_leaks.append(Problem("split_leak", where, f"{message}; expected it in one of the two"))
    described_repeats: list[Problem] = []
    for group in repeats[:MAX_REPORTED].tolist():
        where, message = describe(group)
        described_repeats.append(
            Problem("document_repeated", where, f"{message}; expected at most 1 and {allowed[group]}")
        )
    return PartitionFaults(len(leaks), len(repeats), described_leaks, described_repeats)
