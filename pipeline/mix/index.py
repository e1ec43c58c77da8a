"""The documents of all runs in hash order: deduplicated, added up by source, and cut at document boundaries.

The hash space is read in partitions (`pipeline.mix.partitions`); measures are read block by block. Memory: about 50
bytes for each document of a partition, and 8 bytes for each run and partition.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.clean.drops.table import DUPLICATE, ELSEWHERE, NEAR_DUPLICATE, Counts, SourceDrops, StepDrops, step_of
from pipeline.encode.run import END_HASH, FIRST_HASH, HashKey, Run
from pipeline.mix.block_lists import Blocked
from pipeline.mix.cleaning import BLOCK_DOCUMENTS, Block, SourceLimits
from pipeline.mix.fates import Fate, Fates
from pipeline.mix.partitions import Part, Partitions
from shards.format.equal_hashes import HashRange, find_copies, find_hashes, sort_hashes
from shards.format.manifest import BlockListEntry

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Int64s, Integers, Rows, UInt8s, UInt32s, UInt64s

FAR_OFF = 0.05
"""Largest excess of one source, as a part of all validation tokens, at which the cut of version 0.1.0 is kept, so that
sets keep their bytes. With 200,000 tokens of validation it is 10,000."""
DUPLICATE_ELSEWHERE = DUPLICATE + ELSEWHERE


FOUND_DTYPE = np.dtype(
    [
        ("run", "<i8"),  # the number of the document's run; -1 if none is kept
        ("index", "<i8"),  # its place in the run
        ("span", "<i8"),  # the number of its span in the run's unit
        ("row", "<i8"),  # its row in the span
    ]
)
"""A kept document with a given content hash."""


class Index:
    """The documents of all runs in hash order, read by partitions of the hash space.

    The constructor deduplicates: it decides the fate of each document, and adds up the tokens of those that are kept.
    A document that a block list names is dropped with all its copies. Of the others, those that fall by the limits of
    their source are dropped before copies are looked for.
    """

    def __init__(
        self,
        runs: list[Run],
        num_sources: int,
        blocked: Blocked | None = None,
        limits: Mapping[int, SourceLimits] | None = None,
        scratch: Path | None = None,
    ):
        self._runs = runs
        self.sources = np.array([run.source for run in runs], np.int64)
        self._blocked = blocked or Blocked(())
        self._partitions = Partitions(runs, scratch)
        self.bits = self._partitions.bits
        # Of the documents that are kept, by partition and source.
        self.tokens, self.longest, self._kept = np.zeros((3, 1 << self.bits, num_sources), np.int64)
        self.drops = [SourceDrops() for _ in range(num_sources)]
        for number in range(1 << self.bits):
            self._decide(number, limits or {})

    @property
    def documents(self) -> Int64s:
        """How many documents of each source are kept, `(sources,)`."""
        return self._kept.sum(axis=0)

    @property
    def fates(self) -> Fates:
        """The fates of all documents so far; what is dropped later is not in them."""
        return Fates(self._partitions.edges, self._read_fates)

    def _read_fates(self, number: int) -> UInt8s:
        """Read the fates of a partition; they may be changed and written again."""
        return np.frombuffer(self._partitions.scratch.read(number), np.uint8)

    def _write_fates(self, number: int, fates: UInt8s, lengths: UInt32s) -> None:
        """Write the fates of a partition, and add up what they keep."""
        self._partitions.scratch.write(number, [fates])
        runs = np.flatnonzero(self._partitions.sizes(number))  # a run without documents has no place to begin at
        begins, sources = self._partitions.begins(number)[runs], self.sources[runs]
        keep = fates == Fate.KEPT
        kept = np.where(keep, lengths, 0)
        # Sums over each run, then over the runs of each source.
        for table, add, values in (
            (self.tokens, np.add, kept),
            (self.longest, np.maximum, kept),
            (self._kept, np.add, keep),
        ):
            table[number] = 0
            add.at(table[number], sources, add.reduceat(values, begins, dtype=np.int64))

    def _decide(self, number: int, limits: Mapping[int, SourceLimits]) -> None:
        """Decide the fates of the documents of a partition, run by run, and count them."""
        part = self._partitions.read(number)
        ends = np.cumsum(self._partitions.sizes(number))
        fates = np.zeros(len(part.hi), np.uint8)
        order, shared = sort_hashes(part.hi, part.lo, bits=self.bits)

        # Whoever is listed goes with all copies, counted under the first list.
        found = self._blocked.find(part.hi, part.lo)
        for place, listed in enumerate(self._blocked.lists):
            own = np.flatnonzero(found == place)
            fates[own] = listed.fate
            sources = self.sources[np.searchsorted(ends, own, "right")]
            self._count(listed.reason, sources, part.lengths[own])
        # Who falls by a limit may leave a copy of another source.
        for source, own in limits.items():
            for places, block in self._read_blocks(number, source, part):
                open_ = fates[places] == Fate.KEPT
                fell = own.add(block.only(open_), self.drops[source])
                fates[places[open_][fell]] = Fate.BEYOND_LIMIT
        # Of equal documents that are left, the first is kept; only those that share a beginning can be equal.
        candidates = order[shared]
        copies, originals = find_copies(part.hi, part.lo, candidates[fates[candidates] == Fate.KEPT])
        fates[copies] = Fate.DUPLICATE
        sources, keepers = (self.sources[np.searchsorted(ends, places, "right")] for places in (copies, originals))
        self._count_copies(DUPLICATE, sources, keepers, part.lengths[copies])
        # What is left counts for the cuts.
        self._write_fates(number, fates, part.lengths)

    def _read_blocks(self, number: int, source: int, part: Part) -> Iterator[tuple[Int64s, Block]]:
        """Yield a source's documents of a partition with their measures, block by block, and their places in it."""
        sizes = self._partitions.sizes(number)
        starts = self._partitions.edges[number].astype(np.int64)
        runs = np.flatnonzero((self.sources == source) & (sizes > 0))
        ends = np.cumsum(sizes[runs])
        for first in range(0, int(sizes[runs].sum()), BLOCK_DOCUMENTS):
            # A block may have the end of one run, small runs, and the beginning of another one.
            numbers = np.arange(first, min(first + BLOCK_DOCUMENTS, int(ends[-1])))
            own = np.searchsorted(ends, numbers, "right")
            run, within = runs[own], numbers - (ends - sizes[runs])[own]
            index, places = starts[run] + within, self._partitions.begins(number)[run] + within
            edges = np.append(np.unique(run, return_index=True)[1], len(run))
            values = [
                self._runs[run[low]].read_measures(int(index[low]), int(index[high - 1]) + 1)
                for low, high in itertools.pairwise(edges.tolist())
            ]
            yield places, Block(run, index, *part.only(places), np.concatenate(values))

    def _count(self, reason: str, sources: Int64s, lengths: Integers) -> None:
        """Count dropped documents, of some sources and lengths, under a reason."""
        for source, drops in enumerate(self.drops):
            drops.count(reason, lengths[sources == source])

    def _count_copies(self, reason: str, sources: Int64s, keepers: Int64s, lengths: Integers) -> None:
        """Count copies, or near-duplicates, by their sources and those of the documents that stay in their place."""
        inside = sources == keepers
        self._count(reason, sources[inside], lengths[inside])
        self._count(reason + ELSEWHERE, sources[~inside], lengths[~inside])

    def find(self, hi: UInt64s, lo: UInt64s) -> Rows:
        """Find the kept documents with given content hashes, distinct and in hash order, `FOUND_DTYPE (hashes,)`."""
        result = np.full(len(hi), -1, np.int64).astype(FOUND_DTYPE)
        for number in range(1 << self.bits if len(hi) else 0):
            # Partition by partition: where the kept documents with these hashes are.
            part = self._partitions.read(number)
            own = np.flatnonzero(self._read_fates(number) == Fate.KEPT)
            found = find_hashes(part.hi[own], part.lo[own], hi, lo)
            own, found = own[found >= 0], found[found >= 0]
            runs = np.searchsorted(np.cumsum(self._partitions.sizes(number)), own, "right")
            begins = self._partitions.begins(number)
            starts = self._partitions.edges[number].astype(np.int64)
            result["run"][found] = runs
            result["index"][found] = own - begins[runs] + starts[runs]
        # Then run by run: the spans and rows of those that were found.
        for run in np.unique(result["run"][result["run"] >= 0]).tolist():
            found = np.flatnonzero(result["run"] == run)
            index = result["index"][found]
            first = int(index.min())
            rows = self._runs[int(run)].read_documents(first, int(index.max()) + 1)[index - first]
            result["span"][found] = rows["span"]
            result["row"][found] = rows["row"]
        return result

    def drop_near_duplicates(self, gone: Rows, kept: Rows, lengths: Int64s, *, report: bool) -> None:
        """Count near-duplicates that `find` has found, and take them out of what is kept unless they are only reported.

        Args:
            gone: the near-duplicates.
            kept: the document that stays for each.
            lengths: tokens of the near-duplicates, `(documents,)`.
            report: whether they stay.
        """
        sources = self.sources[gone["run"]]
        for source, drops in enumerate(self.drops):
            drops.steps[NEAR_DUPLICATE] = StepDrops(came=self.count_kept(source), reports=report)
        self._count_copies(NEAR_DUPLICATE, sources, self.sources[kept["run"]], lengths)
        for number in range(0 if report else 1 << self.bits):
            edges = self._partitions.edges[number : number + 2].astype(np.int64)
            first, last = edges[0, gone["run"]], edges[1, gone["run"]]
            inside = (gone["index"] >= first) & (gone["index"] < last)
            begins = self._partitions.begins(number)[gone["run"]]
            fates = self._read_fates(number)
            fates[(begins + gone["index"] - first)[inside]] = Fate.NEAR_DUPLICATE
            self._write_fates(number, fates, self._partitions.read(number).lengths)

    def drop_from(self, source: int, end: int, reason: str) -> None:
        """Drop the kept documents of a source whose first half of the hash is `end` or more, and count them."""
        self.drops[source].step(step_of(reason)).came = self.count_kept(source)
        for number in range(end >> (64 - self.bits), 1 << self.bits):
            part, fates = self._partitions.read(number), self._read_fates(number)
            own = np.repeat(self.sources == source, self._partitions.sizes(number)) & (fates == Fate.KEPT)
            gone = own & (part.hi >= np.uint64(end))
            fates[gone] = Fate.NOT_TAKEN
            self.drops[source].count(reason, part.lengths[gone])
            self._write_fates(number, fates, part.lengths)

    def count_kept(self, source: int) -> Counts:
        """Return the documents and tokens of a source that are kept."""
        documents, tokens = (int(table[:, source].sum()) for table in (self._kept, self.tokens))
        return Counts(documents, tokens)

    def block_lists(self) -> tuple[BlockListEntry, ...]:
        """Return how many hashes of each block list were found, and how many documents were dropped for them."""
        return self._blocked.block_lists(self.drops)

    def partition(self, number: int, source: int) -> Part:
        """Return a source's kept documents in a partition."""
        own = np.repeat(self.sources == source, self._partitions.sizes(number))
        kept = self._read_fates(number)[own] == Fate.KEPT
        return self._partitions.read(number, source).only(kept)


class Cut(NamedTuple):
    """A document boundary: the tokens before it, and the hash of the document after it."""

    tokens: int
    key: HashKey


class Axis:
    """The tokens of one source in hash order. It holds one partition of the source at a time."""

    def __init__(self, index: Index, source: int):
        self._index = index
        self._source = source
        self.cumulative = [0, *np.cumsum(index.tokens[:, source]).tolist()]
        self._loaded = -1
        """The partition whose documents are held."""
        self._hi = self._lo = np.zeros(0, np.uint64)
        """Their hashes in order, `(documents,)`."""
        self._edges = np.zeros(1, np.int64)
        """The tokens of the source before each of them, and after the last, `(documents + 1,)`."""

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
        # Partitions before the cut as a whole, and the documents before it in its own.
        longest = int(self._index.longest[:part, self._source].max(initial=0))
        if part < len(self.cumulative) - 1 and tokens > self.cumulative[part]:
            self._load(part)
            edges = self._edges
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
        self._load(part)
        edges = self._edges
        after = int(np.searchsorted(edges, target, "left"))
        # The boundary below, if it is nearer and may be taken; else the one above.
        down = not up and after > 0 and target - edges[after - 1] < edges[after] - target
        nearest = after - 1 if down else after
        if nearest == len(edges) - 1:  # the partition's end: any key up to the next document's hash denotes it
            return Cut(int(edges[nearest]), (HashRange(part + 1, self._index.bits).start, 0))
        return Cut(int(edges[nearest]), (int(self._hi[nearest]), int(self._lo[nearest])))

    def _load(self, part: int) -> None:
        """Read the source's documents in a partition, unless they are held."""
        if self._loaded == part:
            return
        documents = self._index.partition(part, self._source)
        order, _ = sort_hashes(documents.hi, documents.lo, bits=self._index.bits)
        self._hi, self._lo = documents.hi[order], documents.lo[order]
        ends = np.cumsum(documents.lengths[order], dtype=np.int64)
        self._edges = self.cumulative[part] + np.append(0, ends)
        self._loaded = part
