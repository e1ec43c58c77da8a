"""The documents of all runs in hash order: deduplicated, added up by source, and cut at document boundaries.

The hash space is read in partitions of about `PARTITION_DOCUMENTS`. The keep masks, one byte per document, are the
only memory that grows with the corpus. Only hashes and lengths are read.
"""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.encode.run import END_HASH, FIRST_HASH, HashKey, Run
from pipeline.engine.checksums import write_checksummed

if TYPE_CHECKING:
    import numpy.typing as npt

    from pipeline.mix.block_lists import Blocked, BlockListUse

PARTITION_DOCUMENTS = 1 << 20
FAR_OFF = 0.05
"""Largest excess of one source, as a part of all validation tokens, at which the cut of version 0.1.0 is kept, so that
sets keep their bytes. With 200,000 tokens of validation it is 10,000."""
DUPLICATE = "duplicate"
DUPLICATE_ELSEWHERE = "duplicate of another source"


class Index:
    """The documents of all runs in hash order, read by partitions of the hash space.

    The constructor deduplicates: it makes one keep mask per run (a byte per document) and adds up the documents kept.
    A document that a block list names is dropped with all its copies.
    """

    def __init__(self, runs: list[Run], num_sources: int, blocked: Blocked | None = None):
        self._runs = runs
        self._blocked = blocked
        total = sum(run.num_documents for run in runs)
        self.bits = max(0, (total // PARTITION_DOCUMENTS).bit_length())
        self.tokens = np.zeros((1 << self.bits, num_sources), np.int64)
        self.longest = np.zeros_like(self.tokens)
        self.documents = np.zeros(num_sources, np.int64)
        self.dropped: list[Counter[str]] = [Counter() for _ in range(num_sources)]
        self.masks = [np.zeros(run.num_documents, bool) for run in runs]
        self._edges = [run.partition_edges(self.bits) for run in runs]
        self._deduplicate()

    def _deduplicate(self) -> None:
        for part in range(1 << self.bits):
            parts = [(i, self._edges[i][part], self._edges[i][part + 1]) for i in range(len(self._runs))]
            parts = [(i, first, last) for i, first, last in parts if last > first]
            if not parts:
                continue
            rows = [self._runs[i].read_documents(first, last) for i, first, last in parts]
            hi, lo = (np.concatenate([row[name] for row in rows]) for name in ("hash_hi", "hash_lo"))
            lengths = np.concatenate([row["length"] for row in rows]).astype(np.int64)
            sources = np.repeat([self._runs[i].source for i, _, _ in parts], [last - first for _, first, last in parts])
            # The sort is stable, runs are in (source, unit) order and equal hashes in row order: keep the first.
            order = np.lexsort((lo, hi))
            first_of_kind = np.ones(len(order), bool)
            first_of_kind[1:] = (hi[order][1:] != hi[order][:-1]) | (lo[order][1:] != lo[order][:-1])
            listed = self._drop_blocked(hi[order], lo[order], sources[order])
            keep = np.empty(len(order), bool)
            keep[order] = first_of_kind & ~listed
            self._add_up(part, keep, lengths, sources)
            self._count_duplicates(first_of_kind | listed, sources[order])
            start = 0
            for i, first, last in parts:
                self.masks[i][first:last] = keep[start : start + last - first]
                start += last - first

    def _drop_blocked(
        self, hi: npt.NDArray[np.uint64], lo: npt.NDArray[np.uint64], sources: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return which documents, in hash order, are in a block list, and count them."""
        if self._blocked is None:
            return np.zeros(len(hi), bool)
        listed = self._blocked.find(hi, lo)
        for number, block_list in enumerate(self._blocked.lists):
            counts = np.bincount(sources[listed == number], minlength=len(self.dropped))
            for source in np.flatnonzero(counts).tolist():
                self.dropped[source][block_list.drop_reason] += int(counts[source])
        return listed >= 0

    def _add_up(
        self, part: int, keep: npt.NDArray[np.bool_], lengths: npt.NDArray[np.int64], sources: npt.NDArray[np.int64]
    ) -> None:
        for source in np.unique(sources).tolist():
            chosen = keep & (sources == source)
            self.tokens[part, source] += int(lengths[chosen].sum())
            self.longest[part, source] = lengths[chosen].max(initial=0)
            self.documents[source] += int(chosen.sum())

    def _count_duplicates(self, first_of_kind: npt.NDArray[np.bool_], sources: npt.NDArray[np.int64]) -> None:
        keeper = sources[np.maximum.accumulate(np.where(first_of_kind, np.arange(len(sources)), 0))]
        for source in np.unique(sources[~first_of_kind]).tolist():
            own = ~first_of_kind & (sources == source)
            inside = int((own & (keeper == source)).sum())
            for reason, count in ((DUPLICATE, inside), (DUPLICATE_ELSEWHERE, int(own.sum()) - inside)):
                if count:
                    self.dropped[source][reason] += count

    def write_masks(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Write the keep masks, bool `(num_documents,)` each, and return the files' entries for the receipt."""
        names = [mask_name(index) for index in range(len(self.masks))]
        return {
            name: write_checksummed(folder / name, mask.tobytes()) for name, mask in zip(names, self.masks, strict=True)
        }

    def block_lists(self) -> tuple[BlockListUse, ...]:
        """Return how many hashes of each block list were found."""
        return () if self._blocked is None else self._blocked.counts()

    def source_axis(self, source: int) -> Axis:
        """Return a source's axis of tokens in hash order."""
        return Axis(self, source)

    def partition(
        self, part: int, source: int
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Return hash_hi, hash_lo and length of a source's kept documents in a partition, in hash order."""
        rows = [
            run.read_documents(edges[part], edges[part + 1])[self.masks[i][edges[part] : edges[part + 1]]]
            for i, (run, edges) in enumerate(zip(self._runs, self._edges, strict=True))
            if run.source == source and edges[part + 1] > edges[part]
        ]
        hi, lo = (np.concatenate([row[name] for row in rows]) for name in ("hash_hi", "hash_lo"))
        lengths = np.concatenate([row["length"] for row in rows]).astype(np.int64)
        order = np.lexsort((lo, hi))
        return hi[order], lo[order], lengths[order]


def mask_name(run_index: int) -> str:
    """Return the file name of a run's keep mask."""
    return f"keep-{run_index:06d}.bin"


@dataclass(frozen=True, slots=True)
class Cut:
    """A document boundary: the tokens before it, and the hash of the document after it."""

    tokens: int
    key: HashKey


class Axis:
    """The tokens of one source in hash order."""

    def __init__(self, index: Index, source: int):
        self._index = index
        self._source = source
        self.cumulative = [0, *np.cumsum(index.tokens[:, source]).tolist()]
        self._loaded: tuple[int, Any] = (-1, None)

    @property
    def total(self) -> int:
        """Tokens of the source."""
        return self.cumulative[-1]

    def last_cut(self, target: int, start: int) -> Cut:
        """Return the end of a split that begins at `start`: the boundary nearest to the target, or the next above it.

        The document that straddles the target may be longer than any before it. It is left out only if the shortfall
        is at most half of the longest document before it. So the split misses its share by at most one document that
        it holds, and no source with a share is left out.
        """
        found = self.cut(target)
        if found.tokens > start and 2 * (target - found.tokens) <= self._longest_before(found.tokens):
            return found
        return self.cut(target, up=True)

    def validation_cut(self, target: int, *, val_tokens: int) -> Cut:
        """Return the end of a source's validation, after at least one document.

        It is the nearest boundary if `last_cut` exceeds the target by more than `FAR_OFF` of `val_tokens`, the tokens
        asked of all sources; else `last_cut`.
        """
        last, nearest = self.last_cut(target, 0), self.cut(target)
        return nearest if nearest.tokens and last.tokens - target > FAR_OFF * val_tokens else last

    def _longest_before(self, tokens: int) -> int:
        part = bisect.bisect_right(self.cumulative, tokens) - 1
        longest = int(self._index.longest[:part, self._source].max(initial=0))
        if part < len(self.cumulative) - 1 and tokens > self.cumulative[part]:
            edges = self._partition(part)[2]
            longest = max(longest, int(np.diff(edges[: np.searchsorted(edges, tokens) + 1]).max(initial=0)))
        return longest

    def cut(self, target: int, *, up: bool = False) -> Cut:
        """Return the document boundary nearest to `target` tokens, the upper one of a tie; `up`: none below it."""
        if target <= 0:
            return Cut(0, FIRST_HASH)
        if target >= self.total:
            return Cut(self.total, END_HASH)
        # The partition in which the running total passes the target.
        part = bisect.bisect_right(self.cumulative, target) - 1
        hi, lo, edges = self._partition(part)
        after = int(np.searchsorted(edges, target, "left"))
        down = not up and after > 0 and target - edges[after - 1] < edges[after] - target
        nearest = after - 1 if down else after
        if nearest == len(hi):
            # The boundary is the partition's end: any key up to the next document's hash denotes it.
            return Cut(int(edges[nearest]), _partition_key(part + 1, self._index.bits))
        return Cut(int(edges[nearest]), (int(hi[nearest]), int(lo[nearest])))

    def _partition(self, part: int) -> Any:
        if self._loaded[0] != part:
            hi, lo, lengths = self._index.partition(part, self._source)
            self._loaded = (part, (hi, lo, np.concatenate([[0], np.cumsum(lengths)]) + self.cumulative[part]))
        return self._loaded[1]


def _partition_key(part: int, bits: int) -> HashKey:
    return (part << (64 - bits), 0)
