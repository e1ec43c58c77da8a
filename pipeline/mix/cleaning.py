"""Cleaning when the set is mixed: which documents fall by the measures stored with their runs, counted and shown.

Runs are measured once; the limits are applied here, so that moving one encodes nothing again. A document that falls is
dropped before copies are looked for: sources may have other limits, and of equal documents the first one left is kept.

Everything that is kept of the documents is a sum or the lowest of an order that the documents alone decide. So counts,
histograms and examples are the same for any partitions, blocks and workers. Memory: the measures of
`BLOCK_DOCUMENTS` documents; and for each source its histograms, and `3 * EXAMPLES` documents a limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipeline.clean.drops.table import SourceDrops
from pipeline.clean.limits import count_fallen, find_fallen
from pipeline.encode.run import Run
from pipeline.engine.checksums import WrittenFile, write_checksummed
from pipeline.engine.receipts import TaskOutput
from shards.format.equal_hashes import mark_first
from shards.stores.store import Store

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Bools, Float32s, Float64s, Int64s, Rows, UInt32s, UInt64s
    from pipeline.recipe.schema import SourceRecipe

CODE_VERSION = 3
"""Increase when the same measures and limits would give other counts, histograms or examples."""

CLEANING_FILE = "cleaning.json"
EXAMPLES = 20
"""Documents that are kept of each limit: of those that fall, and nearest to the limit on either side."""
_SHOWN = ("random", "fallen", "left")
_OTHER_FACTORS = (0.5, 0.75, 1.25, 1.5, 2)
"""A limit times these are the other values at which documents are counted."""
_OTHER_COUNTS = [1.0, 2.0, 5.0, 10.0]
"""The other values of a limit that allows none of something."""
BLOCK_DOCUMENTS = 1 << 16
"""Documents whose measures are read at once, about."""
_SORTED_DOCUMENTS = 1 << 11
"""Documents that are sorted at once to find examples: after the first of them few are low enough to be sorted."""
_BIN_BITS = 18
"""Bits of a float32 that a bin leaves out: 32 bins from each power of two to the next."""


class Block(NamedTuple):
    """Some documents of one source, in the order of runs and rows; each array is `(documents,)`."""

    run: Int64s
    """The number of each document's run."""
    place: Int64s
    """Its place in the run."""
    hi: UInt64s
    lo: UInt64s
    lengths: UInt32s
    values: Float32s
    """Its measures, `(documents, measures)`."""

    def only(self, chosen: Bools | Int64s) -> Block:
        """Return some of the documents."""
        return Block._make(column[chosen] for column in self)


def _example_dtype(limits: int) -> np.dtype[np.void]:
    """Return the dtype of documents to show, of a source with so many limits."""
    return np.dtype(
        [
            ("distance", "<f8"),  # the lowest are shown, of equal ones the lowest hashes
            ("hi", "<u8"),
            ("lo", "<u8"),
            ("run", "<i8"),
            ("index", "<i8"),
            ("tokens", "<u4"),
            ("value", "<f4"),  # the measure that is shown
            ("reasons", "?", (limits,)),  # all limits that it breaks
        ]
    )


def _keep_lowest(
    found: Rows, block: Block, places: Int64s, distance: Float64s, values: Float32s, fallen: Bools
) -> Rows:
    """Return the `EXAMPLES` lowest of documents found before and of further ones, by distance and then hash.

    Args:
        found: those found before, of `_example_dtype`; of equal documents, the first stays.
        block: a block of documents.
        places: where in it the further ones are, `(candidates,)`.
        distance: of all documents of the block, to be ordered by before the hash.
        values: the measure that is shown, of all documents of the block.
        fallen: which limits they break, `(limits, documents of the block)`.
    """
    for start in range(0, len(places), _SORTED_DOCUMENTS):
        own = places[start : start + _SORTED_DOCUMENTS]
        if len(found) == EXAMPLES:
            # Most documents are above the highest one found, and need not be sorted.
            last = found[-1]
            near = distance[own] < last["distance"]
            equal = distance[own] == last["distance"]
            own = own[near | (equal & (block.hi[own] <= last["hi"]))]
        if not len(own):
            continue
        # Few of them are low enough to become rows.
        order = (block.place, block.run, block.lo, block.hi, distance)
        own = own[np.lexsort([column[own] for column in order])]
        own = own[mark_first(block.hi[own], block.lo[own])][:EXAMPLES]
        rows = np.zeros(len(own), found.dtype)
        columns = (distance, block.hi, block.lo, block.run, block.place, block.lengths, values, fallen.T)
        for name, column in zip(rows.dtype.names or (), columns, strict=True):
            rows[name] = column[own]
        rows = np.concatenate([found, rows])
        order = [rows[name] for name in ("index", "run", "lo", "hi", "distance")]
        rows = rows[np.lexsort(order)]
        found = rows[mark_first(rows["hi"], rows["lo"])][:EXAMPLES]
    return found


def list_other_values(value: float) -> list[float]:
    """Return other values that a limit might have, in order: whole numbers for one above 1, and shares stay shares."""
    if value == 0:
        return _OTHER_COUNTS
    # Three digits are enough to choose a limit.
    others = [float(f"{value * factor:.3g}") for factor in _OTHER_FACTORS]
    if value > 1 and value == int(value):
        others = [float(round(other)) for other in others]
    return [other for other in dict.fromkeys(others) if other != value and (value > 1 or other <= 1)]


class SourceLimits:
    """The limits of a source's presets with `when = "mix"`: applied to its documents, which are counted and shown."""

    def __init__(self, source: SourceRecipe):
        self.name = source.name
        self._measures = source.clean.mix_measures()
        self._limits = source.clean.limits("mix")
        # Of each limit, the documents that it would drop at other values, and those that are shown.
        self._others = [dict.fromkeys(list_other_values(limit.value), 0) for limit in self._limits]
        none = np.zeros(0, _example_dtype(len(self._limits)))
        self._shown = [dict.fromkeys(_SHOWN, none) for _ in self._limits]
        # Of each measure, the documents in each bin: of all of them, and of those left.
        self._histograms = {name: (np.zeros(0, np.int64), np.zeros(0, np.int64)) for name in self._measures}

    def add(self, block: Block, drops: SourceDrops) -> Bools:
        """Apply the limits to some of the source's documents, each of which is added once.

        Args:
            block: the documents.
            drops: the table of the source, to which they are added.

        Returns:
            Which documents fall, `(documents,)`.
        """
        fallen = find_fallen(block.values, self._measures, self._limits)
        stays = count_fallen(drops, self._limits, fallen, block.lengths)
        # Histograms: the bits of a float32 are in the order of its value, so the first ones are the bin.
        for column, name in enumerate(self._measures):
            bins = np.ascontiguousarray(block.values[:, column]).view(np.uint32) >> np.uint32(_BIN_BITS)
            read, left = self._histograms[name]
            self._histograms[name] = (add_to_histogram(read, bins), add_to_histogram(left, bins[stays]))
        # The limits at other values, and documents on either side of each.
        for own, limit, others, shown in zip(fallen, self._limits, self._others, self._shown, strict=True):
            values = block.values[:, self._measures.index(limit.measure)]
            for value in others:
                others[value] += int(np.count_nonzero(replace(limit, value=value).find_fallen(values)))
            distance = np.abs(values.astype(np.float64) - np.float32(limit.value))
            hit, rest = np.flatnonzero(own), np.flatnonzero(~own)
            orders = (
                (hit, np.zeros(len(values))),
                (hit, distance),
                (rest, distance),
            )
            for name, (places, order) in zip(_SHOWN, orders, strict=True):
                shown[name] = _keep_lowest(shown[name], block, places, order, values, fallen)
        return ~stays

    def to_dict(self, runs: Sequence[Run], rows: Sequence[Run]) -> dict[str, Any]:
        """Return histograms and shown documents as JSON values; the arguments are those of `write_cleaning`."""

        def describe(example: np.void) -> dict[str, Any]:
            run, index = int(example["run"]), int(example["index"])
            (row,) = rows[run].read_documents(index, index + 1)
            broken = np.flatnonzero(example["reasons"]).tolist()
            return {
                "hash": f"{example['hi']:016x}{example['lo']:016x}",
                "run": runs[run].digest,
                "index": index,
                "place": runs[run].labels[int(row["span"])],
                "row": int(row["row"]),
                "tokens": int(example["tokens"]),
                "value": float(example["value"]),
                "reasons": [self._limits[number].reason for number in broken],
            }

        return {
            "name": self.name,
            "limits": [
                {
                    **{name: getattr(limit, name) for name in ("preset", "key", "measure", "side", "value", "reason")},
                    "others": [{"value": value, "documents": count} for value, count in others.items()],
                    **{name: list(map(describe, found)) for name, found in shown.items()},
                }
                for limit, others, shown in zip(self._limits, self._others, self._shown, strict=True)
            ],
            "measures": {
                name: {"read": list_bins(read), "left": list_bins(left)}
                for name, (read, left) in self._histograms.items()
            },
        }


def add_to_histogram(counts: Int64s, bins: UInt32s) -> Int64s:
    """Return the documents in each bin with those of further bins; all values have the same bins, 1/32 of an octave."""
    found = np.bincount(bins, minlength=len(counts))
    found[: len(counts)] += counts
    return found


def list_bins(counts: Int64s) -> list[tuple[float, int]]:
    """Return the lowest value of each bin of a histogram with documents, and how many it has."""
    used = np.flatnonzero(counts)
    lows = (used.astype(np.uint32) << np.uint32(_BIN_BITS)).view(np.float32)
    return list(zip(lows.tolist(), counts[used].tolist(), strict=True))


def open_limits(sources: Sequence[SourceRecipe]) -> dict[int, SourceLimits]:
    """Return the limits of each source that is cleaned in the mix, by the source's index."""
    return {number: SourceLimits(source) for number, source in enumerate(sources) if source.clean.presets("mix")}


def write_cleaning(
    folder: Path, limits: Mapping[int, SourceLimits], runs: Sequence[Run], rows: Sequence[Run]
) -> dict[str, WrittenFile]:
    """Write `cleaning.json`, and return its entry for the receipt.

    Args:
        folder: the task's folder.
        limits: those of each source, after all documents were added.
        runs: the runs.
        rows: the same runs, where their rows are read: a scratch folder if they are in a remote store.
    """
    found = [own.to_dict(runs, rows) for own in limits.values()]
    data = json.dumps({"sources": found}, ensure_ascii=True).encode()
    return {CLEANING_FILE: write_checksummed(folder / CLEANING_FILE, data)}


def read_cleaning(folder: Store) -> dict[str, Any]:
    """Return what the mix task in a folder wrote of the documents that limits drop.

    Raises:
        WorkFileDamagedError: the file is not as it was written.
    """
    return json.loads(bytes(TaskOutput(folder).read(CLEANING_FILE)))
