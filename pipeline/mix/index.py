"""The documents of all runs in hash order: deduplicated, added up by source, and cut at document boundaries.

The hash space is read in partitions (`pipeline.mix.partitions`); measures are read block by block. Memory: about 50
bytes for each document of a partition, and 8 bytes for each run and partition.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.clean.drops.table import DUPLICATE, ELSEWHERE, NEAR_DUPLICATE, Counts, SourceDrops, StepDrops, step_of
from pipeline.encode.run import END_HASH, FIRST_HASH, HashKey, Run
from pipeline.mix.cleaning import BLOCK_DOCUMENTS, Block, SourceLimits
from pipeline.mix.fates import Fate, Fates, FateScratch
from pipeline.mix.partitions import Part, Partitions
from shards.format.equal_hashes import HashRange, find_copies, find_hashes, sort_hashes
from shards.format.manifest import BlockListEntry

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Bools, Int64s, Integers, UInt8s, UInt32s, UInt64s
    from pipeline.mix.block_lists import Blocked

FAR_OFF = 0.05
"""Largest excess of one source, as a part of all validation tokens, at which the cut of version 0.1.0 is kept, so that
sets keep their bytes. With 200,000 tokens of validation it is 10,000."""
DUPLICATE_ELSEWHERE = DUPLICATE + ELSEWHERE


class Found(NamedTuple):
    """The kept documents with given content hashes; -1 where none is kept; each `(hashes,)`."""

    runs: Int64s
    """The number of each one's run."""
    places: Int64s
    """Its place in the run."""
    spans: Int64s
    """The number of its span in the run's unit."""
    rows: Int64s
    """Its row in the span."""


class _Span(NamedTuple):
    """The documents [first, last) of a run."""

    run: int
    place: int
    """The place of the first of them in its partition."""
    first: int
    last: int


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
        self._blocked = blocked
        self._limits = limits or {}
        self._partitions = Partitions(runs, scratch)
        self.bits = self._partitions.bits
        self.tokens = np.zeros((1 << self.bits, num_sources), np.int64)
        self.longest = np.zeros_like(self.tokens)
        self.documents = np.zeros(num_sources, np.int64)
        self.drops = [SourceDrops() for _ in range(num_sources)]
        self._fates = FateScratch(self._partitions.edges, scratch)
        for number in range(1 << self.bits):
            self._decide(number)

    @property
    def fates(self) -> Fates:
        """The fates of all documents so far."""
        return Fates(self._fates.edges, self._fates.read)

    def _decide(self, number: int) -> None:
        """Decide the fates of the documents of a partition, run by run, and count them."""
        part = self._partitions.read(number)
        counts = self._partitions.sizes(number)
        ends = np.cumsum(counts)
        fates = np.zeros(len(part.hi), np.uint8)
        order, shared = sort_hashes(part.hi, part.lo, bits=self.bits)
        if self._blocked is not None:
            # Whoever is listed goes with all copies; who falls by a limit may leave a copy of another source.
            self._drop_listed(self._blocked, part, fates, ends)
        if self._limits:
            fates[self._find_fallen(self._limits, number, part, fates == Fate.KEPT)] = Fate.BEYOND_LIMIT
        # Of equal documents that are left, the first is kept; only those that share a beginning can be equal.
        candidates = order[shared]
        copies, originals = find_copies(part.hi, part.lo, candidates[fates[candidates] == Fate.KEPT])
        fates[copies] = Fate.DUPLICATE
        sources, keepers = (self.sources[np.searchsorted(ends, places, "right")] for places in (copies, originals))
        self._count_copies(DUPLICATE, sources, keepers, part.lengths[copies])
        # What is left counts for the cuts.
        self._add_up(number, fates == Fate.KEPT, part.lengths, counts)
        self._fates.write(number, fates)

    def _drop_listed(
        self,
        blocked: Blocked,
        part: Part,
        fates: UInt8s,
        ends: Int64s,
    ) -> None:
        """Drop the documents that are in a list, and count them under the first list that has them."""
        found = blocked.find(part.hi, part.lo)
        for number, listed in enumerate(blocked.lists):
            own = np.flatnonzero(found == number)
            fates[own] = listed.fate
            self._count(listed.reason, self.sources[np.searchsorted(ends, own, "right")], part.lengths[own])

    def _count(self, reason: str, sources: Int64s, lengths: Integers) -> None:
        """Count dropped documents, of some sources and lengths, under a reason."""
        for source, drops in enumerate(self.drops):
            drops.count(reason, lengths[sources == source])

    def _find_fallen(self, limits: Mapping[int, SourceLimits], number: int, part: Part, open_: Bools) -> Bools:
        """Return which documents fall by the limits of their source, and count them.

        Args:
            limits: the limits of each source that has any.
            number: the partition.
            part: its documents.
            open_: which of them are not dropped yet, `(documents,)`.
        """
        fell = np.zeros(len(open_), bool)
        for spans in self._measured_spans(number):
            runs = [span.run for span in spans]
            sizes = [span.last - span.first for span in spans]
            # The spans of a block follow each other in the partition.
            own = slice(spans[0].place, spans[0].place + sum(sizes))
            source = int(self.sources[runs[0]])
            block = Block(
                np.repeat(runs, sizes),
                np.concatenate([np.arange(span.first, span.last) for span in spans]),
                part.hi[own],
                part.lo[own],
                part.lengths[own],
                np.concatenate([self._runs[span.run].read_measures(span.first, span.last) for span in spans]),
            )
            fell[np.flatnonzero(open_[own]) + own.start] = limits[source].add(
                block.only(open_[own]), self.drops[source]
            )
        return fell

    def _measured_spans(self, number: int) -> Iterator[list[_Span]]:
        """Yield the documents of the cleaned sources in a partition, in blocks.

        The spans of a block follow each other in the partition; all are of one source.
        """
        first_of, last_of = (self._fates.edges[part].astype(np.int64) for part in (number, number + 1))
        begins = np.cumsum(last_of - first_of) - (last_of - first_of)
        pending: list[_Span] = []
        size = 0
        for i in np.flatnonzero(last_of > first_of).tolist():
            source = int(self.sources[i])
            # A block is of one source; small runs share one.
            if pending and source != self.sources[pending[0].run]:
                yield pending
                pending, size = [], 0
            if source not in self._limits:
                continue
            for first in range(int(first_of[i]), int(last_of[i]), BLOCK_DOCUMENTS):
                last = min(int(last_of[i]), first + BLOCK_DOCUMENTS)
                pending.append(_Span(i, int(begins[i]) + first - int(first_of[i]), first, last))
                size += last - first
                if size >= BLOCK_DOCUMENTS:
                    yield pending
                    pending, size = [], 0
        if pending:
            yield pending

    def _add_up(
        self,
        number: int,
        keep: Bools,
        lengths: UInt32s,
        counts: Int64s,
    ) -> None:
        runs = np.flatnonzero(counts)  # a run without documents has no place to begin at
        if len(runs):
            # Sums over each run, then over the runs of each source.
            begins, sources = (np.cumsum(counts) - counts)[runs], self.sources[runs]
            kept = np.where(keep, lengths, 0)
            np.add.at(self.tokens[number], sources, np.add.reduceat(kept, begins, dtype=np.int64))
            np.maximum.at(self.longest[number], sources, np.maximum.reduceat(kept, begins))
            np.add.at(self.documents, sources, np.add.reduceat(keep, begins, dtype=np.int64))

    def _count_copies(
        self,
        reason: str,
        sources: Int64s,
        keepers: Int64s,
        lengths: Integers,
    ) -> None:
        """Count copies, or near-duplicates, by their sources and those of the documents that stay in their place."""
        inside = sources == keepers
        self._count(reason, sources[inside], lengths[inside])
        self._count(reason + ELSEWHERE, sources[~inside], lengths[~inside])

    def find(self, hi: UInt64s, lo: UInt64s) -> Found:
        """Find the kept documents with given content hashes; the hashes are distinct and in hash order."""
        result = Found(*(np.full(len(hi), -1, np.int64) for _ in range(4)))
        for number in range(1 << self.bits if len(hi) else 0):
            # Partition by partition: where the kept documents with these hashes are.
            part, own = self._partitions.read(number), np.flatnonzero(self._kept_in(number))
            found = find_hashes(part.hi[own], part.lo[own], hi, lo)
            own, found = own[found >= 0], found[found >= 0]
            sizes = self._partitions.sizes(number)
            ends = np.cumsum(sizes)
            runs = np.searchsorted(ends, own, "right")
            result.runs[found] = runs
            result.places[found] = own - (ends - sizes)[runs] + self._fates.edges[number, runs].astype(np.int64)
        # Then run by run: the spans and rows of those that were found.
        for i in sorted(set(result.runs.tolist()) - {-1}):
            found = np.flatnonzero(result.runs == i)
            places = result.places[found]
            first = int(places.min())
            rows = self._runs[int(i)].read_documents(first, int(places.max()) + 1)[places - first]
            result.spans[found], result.rows[found] = rows["span"], rows["row"]
        return result

    def drop_near_duplicates(self, gone: Found, kept: Found, lengths: Int64s, *, report: bool) -> None:
        """Count near-duplicates that `find` has found, and take them out of what is kept unless they are only reported.

        Args:
            gone: the near-duplicates.
            kept: the document that stays for each.
            lengths: tokens of the near-duplicates, `(documents,)`.
            report: whether they stay.
        """
        sources = self.sources[gone.runs]
        for source, drops in enumerate(self.drops):
            drops.steps[NEAR_DUPLICATE] = StepDrops(came=self.count_kept(source), reports=report)
        self._count_copies(NEAR_DUPLICATE, sources, self.sources[kept.runs], lengths)
        # Those that go: their fate, and what the sums and the longest document are without them.
        for number in range(0 if report else 1 << self.bits):
            edges = self._fates.edges[number : number + 2].astype(np.int64)
            own = (gone.places >= edges[0, gone.runs]) & (gone.places < edges[1, gone.runs])
            runs, places = gone.runs[own], gone.places[own]
            begins = np.cumsum(edges[1] - edges[0]) - (edges[1] - edges[0])
            fates = self._fates.read(number)
            fates[begins[runs] + places - edges[0, runs]] = Fate.NEAR_DUPLICATE
            self._fates.write(number, fates)
            for source in np.unique(sources[own]).tolist():
                of_source = own & (sources == source)
                self.tokens[number, source] -= int(lengths[of_source].sum())
                self.documents[source] -= int(of_source.sum())
                self.longest[number, source] = self.partition(number, source).lengths.max(initial=0)

    def drop_from(self, source: int, end: int, reason: str) -> None:
        """Drop the kept documents of a source whose first half of the hash is `end` or more, and count them."""
        self.drops[source].step(step_of(reason)).came = self.count_kept(source)
        for number in range(end >> (64 - self.bits), 1 << self.bits):
            part, fates = self._partitions.read(number), self._fates.read(number)
            own = np.repeat(self.sources == source, self._partitions.sizes(number)) & (fates == Fate.KEPT)
            gone = own & (part.hi >= np.uint64(end))
            fates[gone] = Fate.NOT_TAKEN
            self._fates.write(number, fates)
            self.drops[source].count(reason, part.lengths[gone])
            # The sums, and the longest document, are of what is left.
            left = part.lengths[own & ~gone]
            self.documents[source] -= np.count_nonzero(gone)
            self.tokens[number, source] = left.sum(dtype=np.int64)
            self.longest[number, source] = left.max(initial=0)

    def count_kept(self, source: int) -> Counts:
        """Return the documents and tokens of a source that are kept."""
        return Counts(int(self.documents[source]), int(self.tokens[:, source].sum()))

    def block_lists(self) -> tuple[BlockListEntry, ...]:
        """Return how many hashes of each block list were found, and how many documents were dropped for them."""
        return () if self._blocked is None else self._blocked.block_lists(self.drops)

    def source_axis(self, source: int) -> Axis:
        """Return a source's axis of tokens in hash order."""
        return Axis(self, source)

    def partition(self, number: int, source: int) -> Part:
        """Return a source's kept documents in a partition."""
        return self._partitions.read_source(number, source, self._kept_in(number))

    def _kept_in(self, number: int) -> Bools:
        """Return which documents of a partition are kept, run by run."""
        return self._fates.read(number) == Fate.KEPT


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
