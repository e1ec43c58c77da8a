"""Packed rows: whole documents side by side in rows of seq_len slots, planned over the histogram of their lengths.

A slot feeds one token and predicts the next. In a set without BOS a document is fed from the EOS before it, so that it
takes as many slots as it has tokens; in a set with BOS from its BOS, one fewer. A text longer than a row is cut every
seq_len slots. The pieces of a shard, the longest first, go each to the row with the least room that holds it (best fit
decreasing; arXiv:2107.02027). That is done on counts: pieces of one length at once, to rows that are alike at once.

Which rows a shard has is decided by lengths alone. Seed and epoch choose which documents of a length are where, and the
order of rows, as of windows. shards/FORMAT.md states both.
"""

import bisect
import contextlib
import functools
import heapq
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from shards.errors import InputError, plural
from shards.format.arrays import Int64s, find_bounds
from shards.format.document_table import iter_shard_lengths, read_sources
from shards.format.manifest import Split
from shards.format.reader import ShardSet
from shards.format.shard import Shard
from shards.format.windows.order import Pieces, Visit, WindowOrder, seeded_permutation
from shards.stores.cache import Cache, default_cache_folder
from shards.stores.store import reads_at_once
from shards.terminal.workers import map_in_threads

RowKind = Literal["windows", "packed"]
ROW_ORDER_VERSION = 3
"""The version of the order of packed rows, which states name."""
KEPT_PLANS = 8
"""Plans of recent visits that are kept, 48 bytes a document: to make one reads the document table."""
CACHE_BYTES = 1 << 26
"""What the counts of rows of all sets may take in the user's cache."""


def plan_rows(counts: Int64s, seq_len: int) -> Int64s:
    """Return the row of each piece, the longest pieces first, int64 `(pieces,)`.

    Each piece goes to the row with the least room that holds it, of equal ones the first; else to a new row.

    Args:
        counts: how many pieces there are of each number of slots, from 0 to `seq_len`.
        seq_len: the slots of a row.
    """
    rooms: list[int] = []  # that some rows have, ascending
    alike: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # rows with a room: a heap of (first, how many)
    placed: list[tuple[int, int, int]] = []  # first row, how many rows, pieces of one length in each
    rows = 0

    def keep(room: int, first: int, count: int) -> None:
        if count and room:
            if not alike[room]:
                bisect.insort(rooms, room)
            heapq.heappush(alike[room], (first, count))

    longest_first: list[int] = np.flatnonzero(counts[1:])[::-1].tolist()
    for slots in (shorter + 1 for shorter in longest_first):
        left = int(counts[slots])
        while left:
            at = bisect.bisect_left(rooms, slots)
            if at == len(rooms):
                new = -(-left // (seq_len // slots))
                keep(seq_len, rows, new)
                rows += new
                continue
            room = rooms[at]
            first, count = heapq.heappop(alike[room])
            if not alike[room]:
                del rooms[at]
            # A row that takes one is then the one with the least room, and takes the next as long as one fits.
            each = min(room // slots, left)
            taken = min(count, left // each)
            placed.append((first, taken, each))
            keep(room - each * slots, first, taken)
            keep(room, first + taken, count - taken)
            left -= taken * each
    firsts, numbers, each = np.array(placed, np.int64).reshape(-1, 3).T
    return np.repeat(join_ranges(firsts, numbers), np.repeat(each, numbers))


def join_ranges(firsts: Int64s, lengths: Int64s) -> Int64s:
    """Return the numbers of some ranges, one range after the other."""
    return np.repeat(firsts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))


def cut_documents(slots: Int64s, seq_len: int) -> tuple[Int64s, Int64s, Int64s]:
    """Return the pieces of documents with so many slots: each's document, first slot in it, and slots; int64."""
    parts = -(-slots // seq_len)
    documents = np.repeat(np.arange(len(slots)), parts)
    begins = join_ranges(0 * parts, parts) * seq_len
    return documents, begins, np.minimum(slots[documents] - begins, seq_len)


@dataclass(frozen=True)
class RowCounts:
    """What the lengths of a split's documents say of its rows."""

    rows: Sequence[int]
    """Of each shard."""
    cut: int
    """Documents that are longer than a row."""
    longest: int
    """Slots of the longest conversation."""


class RowOrder(WindowOrder):
    """The order of a split's packed rows: `windows` counts rows, and a place is a row's number in its shard's plan."""

    unit = "row"

    def __init__(self, shard_set: ShardSet, split: Split, counts: RowCounts, *, seq_len: int, seed: int):
        """Plan the order of rows; nothing is read yet."""
        self.shards, self.counts, self.manifest = shard_set.splits.get(split, ()), counts, shard_set.manifest
        tokens, phases = [shard.num_tokens for shard in self.shards], find_phases(self.shards)
        super().__init__(tokens, seq_len=seq_len, seed=seed, phases=phases, rows=counts.rows)
        self.before = count_before(shard_set)
        self.slots = sum(tokens) - self.before * sum(shard.num_documents for shard in self.shards)
        """Slots that an epoch fills; the others are padding."""
        self.cropped, self.targets = 0, self.slots
        for source in self.manifest.sources:
            if split == "train" and source.trained_tokens is not None:
                own = self.manifest.count(split, source.name)
                self.targets += source.trained_tokens - own.tokens + self.before * own.documents
        self._plan = functools.lru_cache(KEPT_PLANS)(self._make_plan)

    @property
    def waste(self) -> float:
        """The share of an epoch's slots that are padding."""
        return 1 - self.slots / (self.per_epoch * self.seq_len) if self.per_epoch else 0.0

    def describe(self, batch: int) -> str:
        """Return what an epoch of packed rows has, in words, for steps of so many rows."""
        cut = f"; {plural(self.counts.cut, 'text')} longer than a row are cut" if self.counts.cut else ""
        # The end of a shard wastes less than a row; the rest is where lengths do not fit.
        better = "rows" if self.waste * self.per_epoch > len(self.shards) else "shards"
        remedy = f". Longer {better} waste less" if self.waste > 0.05 else ""
        return (
            f"{plural(self.per_epoch, 'row')} of {self.seq_len}, {self.waste:.2%} of them padding; "
            f"{plural(self.targets, 'target')} and {self.per_epoch / batch:,.2f} steps an epoch{cut}"
            f"{remedy}"
        )

    def find_pieces(self, visit: Visit, places: Int64s) -> Pieces:
        """Return the pieces of a visit's rows by their numbers in the plan; a shard's first begins at -1, an EOS.

        Raises:
            ShardSetError: the document table is not what the manifest says.
            OSError: it cannot be read.
        """
        bounds, pieces = self._plan(visit)
        counts = bounds[places + 1] - bounds[places]
        chosen = join_ranges(bounds[places], counts)
        return Pieces(*(part[chosen] for part in pieces))._replace(rows=np.repeat(np.arange(len(places)), counts))

    def _place(self, visit: Visit, numbers: Int64s) -> Int64s:
        return numbers

    def _make_plan(self, visit: Visit) -> tuple[Int64s, Pieces]:
        """Return the pieces of a visit's rows in the order of the plan, and where each row's begin among them."""
        shard = self.shards[visit.shard]
        lengths = _read_lengths(shard)
        documents, begins, slots = cut_documents(lengths - self.before, self.seq_len)
        rows = plan_rows(np.bincount(slots, minlength=self.seq_len + 1), self.seq_len)
        bounds = find_bounds(np.bincount(rows))
        if len(bounds) - 1 != visit.windows:
            raise shard.wrong_table(f"gives {plural(len(bounds) - 1, 'row')}; expected {visit.windows} as before")
        # Pieces of one length come in a permuted order: the longest first, then row by row.
        chosen = seeded_permutation(len(slots), self.seed, visit.epoch, visit.shard, 1)
        chosen = chosen[np.argsort(self.seq_len - slots[chosen], kind="stable")]
        chosen = chosen[np.argsort(rows, kind="stable")]
        documents, begins, slots = documents[chosen], begins[chosen], slots[chosen]
        starts = (np.cumsum(lengths) - lengths)[documents] + begins - 1 + self.before
        filled = np.cumsum(slots) - slots
        at = filled - np.repeat(filled[bounds[:-1]], np.diff(bounds))
        left = lengths[documents] - self.before - begins - slots
        return bounds, Pieces(np.sort(rows), starts, slots, at, documents, left)


def count_before(shard_set: ShardSet) -> int:
    """Return the tokens of a document before its first target: its BOS, if it has one."""
    return 0 if shard_set.bos_id is None else 1


def _read_lengths(shard: Shard) -> Int64s:
    return np.concatenate([np.empty(0, np.int64), *iter_shard_lengths(shard)])


def count_rows(shard_set: ShardSet, split: Split, seq_len: int) -> RowCounts:
    """Count the rows of a split's shards by the lengths in all document tables; the user's cache keeps the counts.

    Raises:
        ShardSetError: a document table is not what the manifest says.
        OSError: one cannot be read.
    """
    key, cache = f"rows {ROW_ORDER_VERSION} {shard_set.manifest_sha256} {split} {seq_len}", None
    with contextlib.suppress(OSError, InputError, TypeError):  # no cache, or of another version: tables are read
        cache = Cache(default_cache_folder().parent / "rows", CACHE_BYTES)
        if (kept := cache.get(key)) is not None:
            return RowCounts(**json.loads(kept))
    before, talks = count_before(shard_set), np.isin(shard_set.manifest.source_names, shard_set.manifest.conversations)

    def count(shard: Shard) -> tuple[int, int, int]:
        lengths, longest = _read_lengths(shard), 0
        if talks.any():
            _, sources = read_sources(shard, shard_set.source_numbers)
            longest = int((lengths * talks[sources]).max()) - before
        _, _, slots = cut_documents(lengths - before, seq_len)
        rows = plan_rows(np.bincount(slots, minlength=seq_len + 1), seq_len)
        return int(rows.max(initial=-1)) + 1, int((lengths - before > seq_len).sum()), longest

    found = map_in_threads(count, shard_set.splits.get(split, ()), reads_at_once(shard_set.store))
    rows, cut, longest = ([*column] for column in zip((0, 0, 0), *found, strict=True))
    counts = RowCounts(rows[1:], sum(cut), max(longest))
    with contextlib.suppress(OSError):
        if cache is not None:
            cache.put(key, json.dumps(asdict(counts)).encode())
    return counts


def find_phases(shards: Sequence[Shard]) -> list[str]:
    """Return the phase of each shard; none in a set without phases."""
    return [shard.entry.phase for shard in shards if shard.entry.phase is not None]


def order_split(
    shard_set: ShardSet,
    split: Split = "train",
    *,
    seq_len: int,
    seed: int,
    rows: RowKind = "windows",
) -> WindowOrder:
    """Return the order of a split's windows or packed rows; of none if the set does not have the split.

    All that reads samples asks here: a run, the commands that trace it, and `shards.torch`.

    Args:
        shard_set: the set.
        split: the split.
        seq_len: tokens that a sample predicts at most.
        seed: decides the permutations.
        rows: which samples. For packed rows all document tables are read, unless the user's cache knows their rows.

    Raises:
        InputError: the set has conversations, and windows are asked for, or one is longer than a row.
        ShardSetError: a document table is not what the manifest says.
    """
    if rows == "packed":
        counts = count_rows(shard_set, split, seq_len)
        if counts.longest > seq_len:
            before = count_before(shard_set)
            raise InputError(
                f"{shard_set.store}: the longest conversation of {split} has {counts.longest + before:,} tokens, more "
                f"than a row of seq_len = {seq_len}, and none is cut. Raise seq_len (train.seq_len) to "
                f"{counts.longest}, or build the set with chat.max_tokens = {seq_len + before}."
            )
        return RowOrder(shard_set, split, counts, seq_len=seq_len, seed=seed)
    if shard_set.manifest.chat is not None:
        raise InputError(
            f'{shard_set.store}: holds conversations, which windows would cut. Read whole ones: rows = "packed" '
            "(train.rows in a train recipe)."
        )
    shards = shard_set.splits.get(split, ())
    tokens = [shard.num_tokens for shard in shards]
    return WindowOrder(tokens, seq_len=seq_len, seed=seed, phases=find_phases(shards))
