"""The index of all runs' documents in hash order: deduplicated, added up by source, and cut at document boundaries.

The hash space is read in partitions (`pipeline.mix.partitions`); measures are read block by block. Memory: about 50
bytes for each document of a partition, and 8 bytes for each run and partition.
"""

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.clean.drops import Counts, SourceDrops, StepDrops
from pipeline.clean.limits import count_violations, find_violations
from pipeline.clean.reasons import DUPLICATE, ELSEWHERE, MANY_TOKENS, NEAR_DUPLICATE, NOT_TAKEN, step_of
from pipeline.encode.run import END_HASH, FIRST_HASH, HashKey, Run
from pipeline.mix.block_lists import Blocked
from pipeline.mix.partitions import Part, Partitions
from pipeline.recipe.schema import Recipe
from shards.format.arrays import Bools, Float32s, Int64s, Integers, UInt32s, UInt64s, find_bounds
from shards.format.content_hash import HashRange, find_copies, find_hashes, sort_hashes
from shards.format.manifest import BlockListEntry

FAR_OFF = 0.05
"""Largest excess of one source, as a part of all validation tokens, at which the cut is not moved to the nearest
boundary. With 200,000 tokens of validation it is 10,000."""
BLOCK_DOCUMENTS = 1 << 16
"""Documents whose measures are read at once, at most."""
SUM_DOCUMENTS = 1 << 20
"""Documents that are added up at once."""
_CODE_DTYPE = np.dtype(np.uint16)
"""Of the numbers of reasons."""


class Index:
    """The documents of all runs in hash order, read by partitions of the hash space.

    The constructor deduplicates: it decides which documents are dropped, and for which reason. A document that a block
    list names is dropped with all its copies. Of the others, those beyond a limit of their source are dropped before
    copies are looked for: sources may have other limits, and of equal documents the first one left is kept.
    """

    def __init__(
        self,
        runs: list[Run],
        recipe: Recipe,
        found: Sequence[tuple[str, UInt64s]] = (),
        scratch: Path | None = None,
    ):
        """Read the runs, and decide.

        Args:
            runs: of all sources.
            recipe: the recipe.
            found: documents that the mix has found, as for `Blocked`.
            scratch: as for `Partitions`.

        Raises:
            InputError: a block list was changed or deleted after the recipe was read.
        """
        self._runs, self.recipe = runs, recipe
        self.sources = np.array([run.source for run in runs], np.int64)
        self._blocked = Blocked(recipe.drop_hashes, found)
        # In the order in which they count as the first reason.
        self._limits = {
            number: limits for number, source in enumerate(recipe.sources) if (limits := source.clean.limits("mix"))
        }
        self._partitions = Partitions(runs, scratch)
        self.places, self.bits = self._partitions.places, self._partitions.bits
        num_sources = len(recipe.sources)
        reasons = [
            *(limit.reason for limits in self._limits.values() for limit in limits),
            *self._blocked.reasons,
            *(MANY_TOKENS, DUPLICATE, DUPLICATE + ELSEWHERE, NEAR_DUPLICATE, NEAR_DUPLICATE + ELSEWHERE),
            *(describe_take(source.take) for source in recipe.sources),
        ]
        self._codes = {reason: number for number, reason in enumerate(dict.fromkeys(reasons), start=1)}
        """The number of each reason."""
        # Documents and tokens by partition, source and reason, of which the first is none: kept documents.
        self._sums = np.zeros((1 << self.bits, num_sources, 1 + len(self._codes), 2), np.int64)
        self.longest = np.zeros((1 << self.bits, num_sources), np.int64)
        """The longest document that is kept, by partition and source."""
        self._counted = [SourceDrops() for _ in range(num_sources)]
        """Steps that are counted when they decide: limits and near-duplicates."""
        listed = np.array([0, *(self._codes[reason] for reason in self._blocked.reasons)], _CODE_DTYPE)
        for number in range(1 << self.bits):
            self._decide(number, listed)

    @property
    def reasons(self) -> list[str]:
        """The reasons for drops, by their numbers from 1 on."""
        return list(self._codes)

    @property
    def tokens(self) -> Int64s:
        """The tokens that are kept, `(partitions, sources)`."""
        return self._sums[:, :, 0, 1]

    def read_reasons(self, number: int) -> Integers:
        """Return the number of the reason of each document of a partition; 0 for those that are kept."""
        return np.frombuffer(self._partitions.scratch.read(number), _CODE_DTYPE)

    def are_kept(self, run: Int64s, index: Int64s) -> Bools:
        """Return which documents, by their runs and indexes in these, are kept."""
        kept = np.zeros(len(run), bool)
        for number in range(1 << self.bits if len(run) else 0):
            inside, places = self.places.find(number, run, index)
            kept[inside] = self.read_reasons(number)[places] == 0
        return kept

    def _write(self, number: int, codes: Integers, lengths: UInt32s) -> None:
        """Write the reasons of a partition, for the first time or again; add up documents and tokens."""
        self._partitions.scratch.write(number, [codes])
        sums, longest = self._sums[number], self.longest[number]
        sums[:], longest[:] = 0, 0
        sizes = self.places.sizes(number)
        # Neighbouring runs of a source together, in pieces of bounded size.
        edges = np.flatnonzero(np.diff(self.sources, prepend=-1, append=-1))
        ends = find_bounds(sizes)
        for first, last in itertools.pairwise(edges):
            source = self.sources[first]
            for start in range(ends[first], ends[last], SUM_DOCUMENTS):
                own = slice(start, min(start + SUM_DOCUMENTS, ends[last]))
                tokens, gone = lengths[own], np.flatnonzero(codes[own])
                reasons, kept = codes[own][gone], np.where(codes[own], 0, tokens)
                sums[source, :, 0] += np.bincount(reasons, minlength=sums.shape[1])
                sums[source, :, 1] += np.bincount(reasons, tokens[gone], sums.shape[1]).astype(np.int64)
                # The others are kept: most of them.
                sums[source, 0] += len(tokens) - len(gone), kept.sum(dtype=np.int64)
                longest[source] = max(longest[source], kept.max(initial=0))

    def _decide(self, number: int, listed: Integers) -> None:
        """Decide which documents of a partition are dropped; `listed` has the reason of each list, from 1 on."""
        part = self._partitions.read(number)
        order, shared = sort_hashes(part.hi, part.lo, bits=self.bits)

        # Whoever is listed goes with all copies, counted under the first list.
        codes = np.zeros(len(part.hi), _CODE_DTYPE)
        if len(listed) > 1:
            codes = listed[self._blocked.find(part.hi, part.lo) + 1]
        chat, sources = self.recipe.chat, self.recipe.sources
        if chat is not None and chat.max_tokens is not None:
            of_chat = [sources[run.source].has_conversations for run in self._runs]
            own = np.repeat(np.array(of_chat, bool), self.places.sizes(number))
            codes[own & (codes == 0) & (part.lengths > chat.max_tokens)] = self._codes[MANY_TOKENS]
        # A document that breaks a limit may leave a copy of another source.
        for source, limits in self._limits.items():
            measures = sources[source].clean.mix_measures()
            own = np.array([self._codes[limit.reason] for limit in limits], _CODE_DTYPE)
            for block, values in self._read_measures(number, source):
                decided = np.flatnonzero(codes[block] == 0)
                violated = find_violations(values[decided], measures, limits)
                left = count_violations(self._counted[source], limits, violated, part.lengths[block][decided])
                codes[block][decided[~left]] = own[violated.argmax(axis=0)[~left]]
        # Of equal documents that are left, the first is kept; only those that share a beginning can be equal.
        candidates = order[shared]
        copies, originals = find_copies(part.hi, part.lo, candidates[codes[candidates] == 0])
        owners, keepers = (self.sources[self.places.locate(number, places)[0]] for places in (copies, originals))
        inside, elsewhere = self._codes[DUPLICATE], self._codes[DUPLICATE + ELSEWHERE]
        codes[copies] = np.where(owners == keepers, inside, elsewhere)
        self._write(number, codes, part.lengths)

    def _read_measures(self, number: int, source: int) -> Iterator[tuple[slice, Float32s]]:
        """Yield the measures of a source's documents in a partition block by block, and the places of each block."""
        sizes, begins = self.places.sizes(number), self.places.begins(number)
        for run in np.flatnonzero(self.sources == source).tolist():
            begin, first = int(begins[run]), int(self.places.edges[number, run])
            for start in range(0, int(sizes[run]), BLOCK_DOCUMENTS):
                stop = min(start + BLOCK_DOCUMENTS, int(sizes[run]))
                yield slice(begin + start, begin + stop), self._runs[run].read_measures(first + start, first + stop)

    def find(self, hi: UInt64s, lo: UInt64s) -> tuple[Int64s, Int64s]:
        """Find the kept documents with given content hashes, distinct and in hash order.

        Returns:
            The runs and the indexes in these, `(hashes,)` each; -1 for a hash that no kept document has.
        """
        runs, indexes = np.full((2, len(hi)), -1, np.int64)
        for number in range(1 << self.bits if len(hi) else 0):
            part, kept = self._partitions.read(number), np.flatnonzero(self.read_reasons(number) == 0)
            found = find_hashes(part.hi[kept], part.lo[kept], hi, lo)
            kept, found = kept[found >= 0], found[found >= 0]
            runs[found], indexes[found] = self.places.locate(number, kept)
        return runs, indexes

    def drop_near_duplicates(self, run: Int64s, index: Int64s, kept: Int64s, lengths: Int64s, *, report: bool) -> None:
        """Count near-duplicates, and drop them unless they are only reported.

        Args:
            run: their runs, `(documents,)`.
            index: their indexes in these.
            kept: the run of the document that stays for each.
            lengths: their tokens.
            report: whether they stay.
        """
        sources, reasons = self.sources[run], (NEAR_DUPLICATE, NEAR_DUPLICATE + ELSEWHERE)
        elsewhere = (sources != self.sources[kept]).astype(np.int64)
        for source, counted in enumerate(self._counted):
            step = counted.steps[NEAR_DUPLICATE] = StepDrops(decided=self.count_kept(source), reports=report)
            for place, reason in enumerate(reasons):
                step.reason(reason).add(lengths[(sources == source) & (elsewhere == place)])
        numbers = np.array([self._codes[reason] for reason in reasons], _CODE_DTYPE)[elsewhere]
        for number in range(0 if report else 1 << self.bits):
            inside, places = self.places.find(number, run, index)
            codes = self.read_reasons(number)
            codes[places] = numbers[inside]
            self._write(number, codes, self._partitions.read(number).lengths)

    def drop_not_taken(self) -> None:
        """Drop the kept documents that are not taken of each source.

        A document is taken if the first 8 bytes of its hash, as a big-endian number, are below take x 2^64. So the
        documents of a smaller share are among those of a larger one, and nothing but the text decides. Validation
        begins at the lowest hash, and stays as it is.

        This is the last step of the mix: whatever is dropped before it is the same for any share. If it came first, a
        share would hold documents that the whole source loses to near-duplicates, other sources would keep copies of
        documents that are not taken, and the alarms of cleaning would see fewer documents.
        """
        for source, take in enumerate(one.take for one in self.recipe.sources):
            if take == 1:
                continue
            code, end = self._codes[describe_take(take)], find_take_end(take)
            for number in range(end >> (64 - self.bits), 1 << self.bits):
                part, codes = self._partitions.read(number), self.read_reasons(number)
                own = np.repeat(self.sources == source, self.places.sizes(number)) & (codes == 0)
                codes[own & (part.hi >= np.uint64(end))] = code
                self._write(number, codes, part.lengths)

    def count_kept(self, source: int) -> Counts:
        """Return the documents and tokens of a source that are kept."""
        return Counts(*self._sums[:, source, 0].sum(axis=0).tolist())

    @property
    def drops(self) -> list[SourceDrops]:
        """The table of each source: what became of its documents, by first reason for a drop."""
        tables: list[SourceDrops] = []
        for sums, counted in zip(self._sums.sum(axis=0), self._counted, strict=True):
            table = SourceDrops(Counts(*sums.sum(axis=0).tolist()), Counts(*sums[0].tolist()))
            for reason, own in zip(self._codes, sums[1:], strict=True):
                name = step_of(reason)
                if name in counted.steps:
                    table.steps[name] = counted.steps[name]
                elif own[0]:
                    table.step(name).reasons[reason] = Counts(*own.tolist())
                    if name.startswith(NOT_TAKEN):
                        table.step(name).decided = Counts(*(sums[0] + own).tolist())
            tables.append(table)
        return tables

    def block_lists(self) -> tuple[BlockListEntry, ...]:
        """Return how many hashes of each block list are found, and how many documents are dropped for them."""
        return self._blocked.block_lists(self.drops)

    def partition(self, number: int, source: int) -> Part:
        """Return a source's kept documents in a partition."""
        own = np.repeat(self.sources == source, self.places.sizes(number))
        kept = self.read_reasons(number)[own] == 0
        return Part._make(column[kept] for column in self._partitions.read(number, source))


def describe_take(take: float) -> str:
    """Return the reason under which documents that are not taken count."""
    return f"{NOT_TAKEN}: take = {take}"


def find_take_end(take: float) -> int:
    """Return the lowest first half of a hash that is not taken, for a share below 1."""
    return math.ceil(take * 2.0**64)  # exact: a power of two changes no digit


class Cut(NamedTuple):
    """A document boundary: the tokens before it, and the hash of the document after it."""

    tokens: int
    key: HashKey


class Axis:
    """The tokens of one source in hash order. It holds one partition of the source at a time."""

    def __init__(self, index: Index, source: int):
        self._index = index
        self._source = source
        self.cumulative = find_bounds(index.tokens[:, source]).tolist()
        self._loaded = -1
        """The partition whose documents are held."""
        self._hi = self._lo = np.zeros(0, np.uint64)
        """Their hashes in order, `(documents,)`."""
        self._edges = np.zeros(1, np.int64)
        """The tokens of the source before each of them, and after the last, `(documents + 1,)`."""

    @property
    def total(self) -> int:
        """All tokens of the source."""
        return self.cumulative[-1]

    def last_cut(self, target: int, start: int) -> Cut:
        """Return the end on the axis of a split that begins at `start`: the boundary nearest to the target, or above.

        The document that straddles the target may be longer than any before it. It is left out only if the shortfall
        is at most half of the longest document before it. So the split misses its share by at most one document that
        it holds, and no source with a share is left out.
        """
        found = self.cut(target)
        if found.tokens > start and 2 * (target - found.tokens) <= self._longest_before(found.tokens):
            return found
        return self.cut(target, up=True)

    def validation_cut(self, target: int, *, val_tokens: int) -> Cut:
        """Return the end on the axis of a source's validation, if possible after at least one document.

        It is the nearest boundary if `last_cut` exceeds the target by more than `FAR_OFF` of `val_tokens`, the tokens
        asked of all sources; else `last_cut`. It is below the target, maybe before the first document, if a long
        document would make it most of the source.
        """
        last, nearest = self.last_cut(target, 0), self.cut(target)
        found = nearest if nearest.tokens and last.tokens - target > FAR_OFF * val_tokens else last
        return self.cut(target, down=True) if found.tokens > max(target, self.total // 2) else found

    def _longest_before(self, tokens: int) -> int:
        part = bisect.bisect_right(self.cumulative, tokens) - 1
        # Partitions before the cut as a whole, and the documents before it in its own.
        longest = int(self._index.longest[:part, self._source].max(initial=0))
        if part < len(self.cumulative) - 1 and tokens > self.cumulative[part]:
            self._load(part)
            edges = self._edges
            longest = max(longest, int(np.diff(edges[: np.searchsorted(edges, tokens) + 1]).max(initial=0)))
        return longest

    def cut(self, target: int, *, up: bool = False, down: bool = False) -> Cut:
        """Return the document boundary nearest to `target` tokens, the upper one of a tie; `up`: none below."""
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
        down |= not up and after > 0 and target - edges[after - 1] < edges[after] - target
        nearest = after - 1 if down and edges[after] > target else after
        if nearest == len(edges) - 1:  # the partition's end: any key up to the next document's hash denotes it
            return Cut(int(edges[nearest]), (HashRange(part + 1, self._index.bits).start, 0))
        return Cut(int(edges[nearest]), (int(self._hi[nearest]), int(self._lo[nearest])))

    def _load(self, part: int) -> None:
        """Read the documents of a partition, unless they are held."""
        if self._loaded == part:
            return
        documents = self._index.partition(part, self._source)
        order, _ = sort_hashes(documents.hi, documents.lo, bits=self._index.bits)
        self._hi, self._lo = documents.hi[order], documents.lo[order]
        self._edges = self.cumulative[part] + find_bounds(documents.lengths[order])
        self._loaded = part
