"""Check over the hashes of the whole set that no document is in both splits, or in one split more often than allowed.

Hashes are compared in ranges, so that at most about `PARTITION_DOCUMENTS` of them are in memory at once. A range reads
the hash column of the shards that may have documents in it: of a set that we built, a shard holds a part of all hashes,
and is in one or two ranges. Costs about 0.15 s for a million documents.
"""

# pyright: reportUnknownMemberType=false
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from shards.errors import Problem, ProblemKind, ShardSetError, plural
from shards.format.arrays import Int32s, Int64s, UInt64s
from shards.format.content_hash import HashRange, divide_hashes, mark_first, sort_hashes, split_column
from shards.format.document_table import number_sources
from shards.format.shard import Shard, iter_documents
from shards.stores.store import reads_at_once
from shards.terminal.workers import map_in_threads

PARTITION_DOCUMENTS = 1 << 23
"""Hashes in memory at once: 8 M with their shard and row peak at 0.8 GB, measured on sets of 16 M and 32 M."""

MAX_REPORTED = 20
"""Maximum documents named for each kind of fault; the last problem says how many there are in all."""

MAX_MEMBERS = 8
"""Maximum places named for each of these documents."""


def check_duplicates(shards: Sequence[tuple[Shard, tuple[int, int]]], epochs: Mapping[str, int]) -> list[Problem]:
    """Check how often each document occurs, one range of hashes after the other.

    Args:
        shards: shards whose document tables are sound, with the first halves of each one's lowest and highest hash: a
            range reads only the shards that may have documents in it.
        epochs: how often a training document of each source may occur; 1 for a source that is not listed.

    Returns:
        `split_leak` for a document in train and val; `document_repeated` for a document that occurs twice in val, or
        more often in train than its source's epochs (the largest of them, if the document belongs to several sources).
    """
    problems: list[Problem] = []
    counts: Counter[ProblemKind] = Counter()
    for hashes in divide_hashes(sum(shard.num_documents for shard, _ in shards), PARTITION_DOCUMENTS):
        own = [shard for shard, extent in shards if hashes.meets(*extent)]
        # Val first: of equal documents, those of val are then named first.
        ordered = sorted(own, key=lambda shard: shard.entry.split != "val")
        try:
            documents = _read_documents(ordered, epochs, hashes)
        except ShardSetError as error:
            return error.problems
        problems += _find_repeated(documents, ordered, hashes, counts)
    for kind, count in counts.items():
        if count > MAX_REPORTED:
            message = f"{count:,} such documents in all; the first {MAX_REPORTED} are listed"
            problems.append(Problem(kind, "all shards", message))
    return problems


class _Documents(NamedTuple):
    """Documents of some shards, shard by shard, each array `(documents,)`."""

    high: UInt64s
    low: UInt64s
    shard: Int32s
    """The number of each one's shard."""
    row: Int32s
    allowed: Int32s
    """How often it may occur in train."""


def _read_documents(shards: Sequence[Shard], epochs: Mapping[str, int], hashes: HashRange) -> _Documents:
    limits = {name: min(count, 1 << 30) for name, count in epochs.items()}

    def read(number: int) -> list[_Documents]:
        shard, first, parts = shards[number], 0, list[_Documents]()
        for batch in iter_documents(shard, ["source", "hash"]):
            high, low = split_column(batch.column("hash")).T
            # Hashes of other ranges are left out at once: they do not cost memory.
            own = np.flatnonzero(hashes.holds(high))
            allowed = number_sources(shard, batch, limits, default=1).astype(np.int32)
            numbers = np.full(len(own), number, np.int32)
            parts.append(_Documents(high[own], low[own], numbers, (own + first).astype(np.int32), allowed[own]))
            first += len(high)
        return parts

    no_hashes, no_numbers = np.empty(0, np.uint64), np.empty(0, np.int32)
    threads = reads_at_once(shards[0].store) if shards else 1
    parts = [_Documents(no_hashes, no_hashes, no_numbers, no_numbers, no_numbers)]
    parts += chain.from_iterable(map_in_threads(read, range(len(shards)), threads))
    return _Documents(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _find_repeated(
    documents: _Documents, shards: Sequence[Shard], hashes: HashRange, counts: Counter[ProblemKind]
) -> Iterator[Problem]:
    """Count the groups of equal documents that occur too often, by kind of fault, and yield the first problems.

    A set that is all copies would have millions.
    """
    order, shared = sort_hashes(documents.high, documents.low, bits=hashes.bits)
    order = order[shared]  # the others equal no other
    high, low = documents.high[order], documents.low[order]
    # Of each group of equal documents: how often it is in each split, and how often it may be in train.
    groups = np.flatnonzero(mark_first(high, low))
    is_val = np.array([shard.entry.split == "val" for shard in shards], np.int64)
    in_val = np.add.reduceat(is_val[documents.shard[order]], groups) if len(groups) else groups
    in_train = np.diff(np.append(groups, len(order))) - in_val
    allowed = np.maximum.reduceat(documents.allowed[order], groups) if len(groups) else groups
    # A document may be in one split; in val once, in train as often as its source is repeated.
    found: dict[ProblemKind, Int64s] = {
        "split_leak": np.flatnonzero((in_val > 0) & (in_train > 0)),
        "document_repeated": np.flatnonzero((in_val > 1) | (in_train > allowed)),
    }

    for kind, wrong in found.items():
        for group in wrong[: max(0, MAX_REPORTED - counts[kind])].tolist():
            begin, val, train = int(groups[group]), int(in_val[group]), int(in_train[group])
            members = order[begin : begin + min(val + train, MAX_MEMBERS)].tolist()
            places = [
                f"{shards[int(documents.shard[member])].name} document {documents.row[member]}" for member in members
            ]
            message = (
                f"document {int(high[begin]):016x}{int(low[begin]):016x} occurs {plural(val, 'time')} in val "
                f"and {train} in train ({', '.join(places)}{', ...' if val + train > MAX_MEMBERS else ''}); "
                f"expected it in one of the two, and there at most 1 and {allowed[group]}"
            )
            yield Problem(kind, places[-1], message)
        counts[kind] += len(wrong)
