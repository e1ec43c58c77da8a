"""Cleaning when the set is mixed: which documents fall by the measures stored with their runs, counted and shown.

Runs are measured once; the limits are applied here, so that moving one encodes nothing again. A document that falls is
dropped before copies are looked for: sources may have other limits, and of equal documents the first one left is kept.

Everything that is kept of the documents is a sum or the lowest of an order that the documents alone decide. So counts,
histograms and examples are the same for any partitions, blocks and workers. Memory: the measures of
`BLOCK_DOCUMENTS` documents; and for each source its histograms, and `3 * EXAMPLES` documents a limit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.clean.limits import count_first, find_fallen, find_first_limit
from pipeline.encode.run import Run
from pipeline.engine.checksums import write_checksummed
from pipeline.engine.receipts import TaskOutput
from shards.stores.store import Store

if TYPE_CHECKING:
    import numpy.typing as npt

    from pipeline.recipe.presets import Limit
    from pipeline.recipe.schema import SourceRecipe

CODE_VERSION = 2
"""Increase when the same measures and limits would give other counts, histograms or examples."""

CLEANING_FILE = "cleaning.json"
EXAMPLES = 20
"""Documents that are kept of each limit: of those that fall, and nearest to the limit on either side."""
_OTHER_FACTORS = (0.5, 0.75, 1.25, 1.5, 2)
"""A limit times these are the other values at which documents are counted."""
_OTHER_COUNTS = [1.0, 2.0, 5.0, 10.0]
"""The other values of a limit that allows none of something."""
_NEAR = 16 * EXAMPLES
"""Documents that are sorted to find these, if there are enough distinct ones among them."""
BLOCK_DOCUMENTS = 1 << 16
"""Documents whose measures are read at once, about."""
_BIN_BITS = 18
"""Bits of a float32 that a bin leaves out: 32 bins from each power of two to the next."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some documents of one source, in the order of runs and rows; each array is `(documents,)`."""

    run: npt.NDArray[np.int64]
    """The number of each document's run."""
    index: npt.NDArray[np.int64]
    """Its place in the run."""
    hi: npt.NDArray[np.uint64]
    lo: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint32]
    values: npt.NDArray[np.float32]
    """Its measures, `(documents, measures)`."""

    def only(self, mask: npt.NDArray[np.bool_]) -> Block:
        """Return the documents of a mask."""
        if mask.all():
            return self
        return Block(
            self.run[mask], self.index[mask], self.hi[mask], self.lo[mask], self.lengths[mask], self.values[mask]
        )


def read_cleaning(folder: Store) -> dict[str, Any]:
    """Return what the mix task in a folder wrote of the documents that it dropped.

    Raises:
        WorkFileDamagedError: the file is not as it was written.
    """
    return json.loads(bytes(TaskOutput(folder).read(CLEANING_FILE)))


def read_block(number: int, run: Run, first: int, last: int) -> Block:
    """Read the documents [first, last) of the run with a number, and their measures, as a block to clean."""
    rows = run.read_documents(first, last)
    hi, lo, lengths = (rows[name].copy() for name in ("hash_hi", "hash_lo", "length"))
    index = np.arange(first, last)
    return Block(np.full(len(rows), number), index, hi, lo, lengths, run.read_measures(first, last))


@dataclass(frozen=True, slots=True, order=True)
class _Example:
    """A document to show; `distance` and the hash order them."""

    distance: float
    hi: int
    lo: int
    run: int
    index: int
    tokens: int
    value: float
    reasons: tuple[int, ...]
    """The numbers of all limits that it breaks."""


def _find_lowest(distance: npt.NDArray[np.float64], hi: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the `count` lowest by distance and then hash, and of all that equal the last of these."""
    last = np.partition(distance, count - 1)[count - 1]
    below, tied = distance < last, distance == last
    left = count - 1 - int(below.sum())
    return below | (tied & (hi <= np.partition(hi[tied], left)[left]))


class _Lowest:
    """The `EXAMPLES` lowest of all documents added; of equal ones, the first."""

    def __init__(self) -> None:
        self.found: list[_Example] = []

    def add(
        self,
        block: Block,
        where: npt.NDArray[np.int64],
        distance: npt.NDArray[np.float64],
        values: npt.NDArray[np.float32],
        fallen: npt.NDArray[np.bool_],
    ) -> None:
        """Add documents.

        Args:
            block: the block that they are in.
            where: their indices in it, `(candidates,)`.
            distance: what they are ordered by before the hash, `(candidates,)`.
            values: the measure that is shown, of all documents of the block.
            fallen: which limits they break, `(limits, documents of the block)`.
        """
        if len(self.found) == EXAMPLES:
            last = self.found[-1]
            near = (distance < last.distance) | ((distance == last.distance) & (block.hi[where] <= np.uint64(last.hi)))
            where, distance = where[near], distance[near]
        if len(where) > _NEAR:  # to sort all would take ten times as long
            near = _find_lowest(distance, block.hi[where], _NEAR)
            if len(np.unique(block.hi[where[near]])) >= EXAMPLES:
                where, distance = where[near], distance[near]
        if not len(where):
            return
        order = np.lexsort((block.index[where], block.run[where], block.lo[where], block.hi[where], distance))
        where, distance = where[order], distance[order]
        first = np.ones(len(where), bool)
        first[1:] = (block.hi[where[1:]] != block.hi[where[:-1]]) | (block.lo[where[1:]] != block.lo[where[:-1]])
        added = [
            _Example(
                float(distance[place]),
                int(block.hi[where[place]]),
                int(block.lo[where[place]]),
                int(block.run[where[place]]),
                int(block.index[where[place]]),
                int(block.lengths[where[place]]),
                float(values[where[place]]),
                tuple(np.flatnonzero(fallen[:, where[place]]).tolist()),
            )
            for place in np.flatnonzero(first)[:EXAMPLES].tolist()
        ]
        distinct: dict[tuple[int, int], _Example] = {}
        for example in sorted([*self.found, *added]):
            distinct.setdefault((example.hi, example.lo), example)
        self.found = list(distinct.values())[:EXAMPLES]


class Counts:
    """Documents and tokens."""

    def __init__(self) -> None:
        self.documents = 0
        self.tokens = 0

    def add(self, lengths: npt.NDArray[np.uint32]) -> None:
        """Add documents by their lengths."""
        self.documents += len(lengths)
        self.tokens += int(lengths.sum(dtype=np.int64))

    def to_dict(self) -> dict[str, int]:
        """Return both numbers."""
        return {"documents": self.documents, "tokens": self.tokens}


class _Histogram:
    """How many documents have a measure of a value, in bins that are the same for all values: 1/32 of an octave."""

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.int64)

    def add(self, bins: npt.NDArray[np.uint32]) -> None:
        """Add documents by the bins of their values."""
        found = np.bincount(bins, minlength=len(self._counts))
        found[: len(self._counts)] += self._counts
        self._counts = found

    def to_list(self) -> list[tuple[float, int]]:
        """Return the lowest value of each bin with documents, and how many."""
        used = np.flatnonzero(self._counts)
        lows = (used.astype(np.uint32) << np.uint32(_BIN_BITS)).view(np.float32)
        return list(zip(lows.tolist(), self._counts[used].tolist(), strict=True))


def list_other_values(value: float) -> list[float]:
    """Return other values that a limit might have, in order: whole numbers for one above 1, and shares stay shares."""
    if value == 0:
        return _OTHER_COUNTS
    others = [float(f"{value * factor:.3g}") for factor in _OTHER_FACTORS]
    if value > 1 and value == int(value):
        others = [float(round(other)) for other in others]
    return [other for other in dict.fromkeys(others) if other != value and (value > 1 or other <= 1)]


@dataclass(slots=True)
class _OtherValue:
    """A limit at another value, and how many documents it would drop."""

    limit: Limit
    documents: int = 0


class _LimitTally:
    """The effect of one limit on a source."""

    def __init__(self, limit: Limit) -> None:
        self.others = [_OtherValue(replace(limit, value=value)) for value in list_other_values(limit.value)]
        self.first = Counts()
        self.every = Counts()
        self.alone = Counts()
        self.random = _Lowest()
        self.fallen = _Lowest()
        self.left = _Lowest()


class _SourceTally:
    """The effect of all limits on a source."""

    def __init__(self, source: SourceRecipe):
        self.name = source.name
        self.measures = source.clean.mix_measures()
        self.limits = source.clean.limits("mix")
        self.read, self.left = Counts(), Counts()
        self.presets = {preset.name: Counts() for preset in source.clean.presets("mix")}
        self.tallies = [_LimitTally(limit) for limit in self.limits]
        self.histograms = {name: (_Histogram(), _Histogram()) for name in self.measures}

    def add(self, block: Block, dropped: Counter[str]) -> npt.NDArray[np.bool_]:
        """Add a block to the counts; return which of its documents are dropped."""
        fallen = find_fallen(block.values, self.measures, self.limits)
        first, reasons = find_first_limit(fallen), fallen.sum(axis=0)
        gone = first >= 0
        count_first(first, self.limits, dropped)
        self.read.add(block.lengths)
        self.left.add(block.lengths[~gone])
        for name, counts in self.presets.items():
            own = [number for number, limit in enumerate(self.limits) if limit.preset == name]
            counts.add(block.lengths[fallen[own].any(axis=0)])
        for column, name in enumerate(self.measures):
            bins = np.ascontiguousarray(block.values[:, column]).view(np.uint32) >> np.uint32(_BIN_BITS)
            for histogram, chosen in zip(self.histograms[name], (bins, bins[~gone]), strict=True):
                histogram.add(chosen)
        for number, (limit, tally) in enumerate(zip(self.limits, self.tallies, strict=True)):
            tally.first.add(block.lengths[first == number])
            tally.every.add(block.lengths[fallen[number]])
            tally.alone.add(block.lengths[fallen[number] & (reasons == 1)])
            values = block.values[:, self.measures.index(limit.measure)]
            for other in tally.others:
                other.documents += int(np.count_nonzero(other.limit.find_fallen(values)))
            distance = np.abs(values.astype(np.float64) - np.float32(limit.value))
            hit, rest = np.flatnonzero(fallen[number]), np.flatnonzero(~fallen[number])
            tally.random.add(block, hit, np.zeros(len(hit)), values, fallen)
            tally.fallen.add(block, hit, distance[hit], values, fallen)
            tally.left.add(block, rest, distance[rest], values, fallen)
        return gone

    def to_dict(self, show: _Show) -> dict[str, Any]:
        """Return everything as JSON values."""
        reasons = [limit.reason for limit in self.limits]

        def examples(lowest: _Lowest) -> list[dict[str, Any]]:
            return [
                show.example(item) | {"value": item.value, "reasons": [reasons[number] for number in item.reasons]}
                for item in lowest.found
            ]

        limits = [
            {
                "preset": limit.preset,
                "key": limit.key,
                "measure": limit.measure,
                "side": limit.side,
                "value": limit.value,
                "reason": limit.reason,
                "first": tally.first.to_dict(),
                "every": tally.every.to_dict(),
                "alone": tally.alone.to_dict(),
                "others": [{"value": other.limit.value, "documents": other.documents} for other in tally.others],
                "random": examples(tally.random),
                "fallen": examples(tally.fallen),
                "left": examples(tally.left),
            }
            for limit, tally in zip(self.limits, self.tallies, strict=True)
        ]
        measures = {
            name: {"read": everything.to_list(), "left": left.to_list()}
            for name, (everything, left) in self.histograms.items()
        }
        return {
            "name": self.name,
            "read": self.read.to_dict(),
            "left": self.left.to_dict(),
            "presets": {name: counts.to_dict() for name, counts in self.presets.items()},
            "limits": limits,
            "measures": measures,
        }


@dataclass(frozen=True)
class _Show:
    """Finds a document's run and its row in the source."""

    runs: Sequence[Run]
    rows: Sequence[Run]
    """The same runs, where their rows are read: a scratch folder if they are in a remote store."""

    def example(self, example: _Example) -> dict[str, Any]:
        run = self.runs[example.run]
        (row,) = self.rows[example.run].read_documents(example.index, example.index + 1)
        return {
            "hash": f"{example.hi:016x}{example.lo:016x}",
            "run": run.digest,
            "index": example.index,
            "place": run.labels[int(row["span"])],
            "row": int(row["row"]),
            "tokens": example.tokens,
        }


class Cleaning:
    """The presets with `when = "mix"` of all sources, and what they do."""

    def __init__(self, sources: Sequence[SourceRecipe]):
        self._tallies = [_SourceTally(source) if source.clean.presets("mix") else None for source in sources]

    @cached_property
    def sources(self) -> frozenset[int]:
        """The indices of the sources that are cleaned."""
        return frozenset(index for index, tally in enumerate(self._tallies) if tally is not None)

    def add(self, source: int, block: Block, dropped: Counter[str]) -> npt.NDArray[np.bool_]:
        """Apply a source's limits to some of its documents, each of which is added once.

        Args:
            source: the source's index.
            block: the documents.
            dropped: the counts by first reason are added to it.

        Returns:
            Which documents fall, `(documents,)`.
        """
        tally = self._tallies[source]
        assert tally is not None
        return tally.add(block, dropped)

    def counts(self, source: int) -> tuple[Counts, Counts, dict[str, Counts]]:
        """Return how many documents of a source were added, are left, and would be dropped by each preset alone."""
        tally = self._tallies[source]
        assert tally is not None
        return tally.read, tally.left, tally.presets

    def first_tokens(self, source: int) -> dict[str, int]:
        """Return the tokens of the documents of a source that each reason was the first to drop."""
        tally = self._tallies[source]
        assert tally is not None
        return {limit.reason: own.first.tokens for limit, own in zip(tally.limits, tally.tallies, strict=True)}

    def write(self, folder: Path, runs: Sequence[Run], rows: Sequence[Run]) -> dict[str, dict[str, Any]]:
        """Write `cleaning.json`, and return its entry for the receipt.

        Args:
            folder: the task's folder.
            runs: the runs.
            rows: the same runs, where their rows are read.
        """
        show = _Show(runs, rows)
        found = [tally.to_dict(show) for tally in self._tallies if tally is not None]
        data = json.dumps({"sources": found}, ensure_ascii=True).encode()
        return {CLEANING_FILE: write_checksummed(folder / CLEANING_FILE, data)}


def cleaned_when_mixed(sources: Iterable[SourceRecipe]) -> bool:
    """Return whether a source has a preset that is applied here."""
    return any(source.clean.presets("mix") for source in sources)
