"""What the audit takes from one shard, in one pass: counts, lengths, and samples of windows to compare between shards.

Counts are exact. What must be compared across the whole set is sampled by content (by a hash of the very thing that
may be equal), so that equal things are sampled together in every shard, and what a shard returns has a fixed bound:
a histogram a source, and the samples, whose rates `SampleRates` sets by the size of the set.

Cost a token on one core (measured on code): decompression and counts by source 6 ns, documents that hold each id 6,
windows 12.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.audit.histogram import BINS, bin_lengths
from shards.audit.ngrams import NO_WINDOW, hash_windows, mix, token_values
from shards.format.hashes import split_hashes
from shards.format.manifest import Split
from shards.format.reader import open_set
from shards.format.scan import Stretch, iter_stretches

if TYPE_CHECKING:
    import numpy.typing as npt

GRAM_TOKENS = 16
"""Tokens in an n-gram: about the 13 words that GPT-3's authors compared (arXiv:2005.14165, appendix C)."""
GRAM_RATE = 4
"""One in four of the validation n-grams is looked for."""
WINDOW_TOKENS = 64
"""Tokens in a repeated window: a passage, not a phrase."""
SKETCH_SIZE = 128
"""Smallest n-gram hashes kept of a document: its resemblance to another is then known to about 0.04."""
MIN_GRAMS = 16
"""A document with fewer n-grams than this is too short to be a near-duplicate of anything."""
BITMAP_BITS = 24

Found = np.dtype([("hash", "<u8"), ("document", "<i8"), ("key", "<u8")])
"""A window's hash, the document that holds it (its number in the shard), and the head of that document's hash."""


@dataclass(frozen=True)
class SampleRates:
    """One in how many; each decides by content, so that a rate holds over the set and not shard by shard.

    Attributes:
        documents: documents whose n-gram sketch is kept, chosen by their smallest n-gram hash.
        passages: documents whose windows are looked at, chosen by content hash.
        windows: windows kept of these, chosen by their hash.
        val_documents: validation documents looked for in training, chosen by content hash.
    """

    documents: int = 1
    passages: int = 1
    windows: int = 1
    val_documents: int = 1


@dataclass(frozen=True)
class ShardTask:
    """One shard to look at. `grams` is the file of validation n-grams to look for, where there is one."""

    folder: Path
    shard: int
    rates: SampleRates
    grams: Path | None = None
    counts_only: bool = False


@dataclass(frozen=True)
class Sketch:
    """The sampled n-grams of one document: the smallest hash, the `SKETCH_SIZE` smallest, and which document it is."""

    smallest: int
    key: int
    shard: int
    document: int
    source: int
    hashes: npt.NDArray[np.uint64]


@dataclass
class ShardFigures:
    """What one shard holds.

    Attributes:
        counts: int64 `(sources, vocab_size)`, how often each id occurs.
        documents: int32 `(vocab_size,)`, documents that hold each id.
        example: int32 `(vocab_size,)`, a document that holds each id, -1 where there is none.
        lengths: int64 `(sources, BINS)`, documents by length in tokens, EOS included.
        shortest, longest: int64 `(sources,)`.
        misplaced: documents with a special id inside (EOS before the end, or any other), first few, with the id.
        windows: sampled windows of `WINDOW_TOKENS` tokens, one row a document and window.
        passage_documents: documents whose windows were looked at.
        grams: validation: sampled n-grams; training: those of validation that were seen here.
        sketches: of sampled documents.
    """

    split: Split
    counts: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int32]
    example: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    shortest: npt.NDArray[np.int64]
    longest: npt.NDArray[np.int64]
    misplaced: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    windows: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, Found))
    passage_documents: int = 0
    grams: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, Found))
    sketches: list[Sketch] = field(default_factory=list[Sketch])


MAX_MISPLACED = 20


def look_at_shard(task: ShardTask) -> ShardFigures:
    """Read one shard and return its figures.

    Raises:
        ShardSetError: the shard's files are not what the manifest says.
        OSError: a file cannot be read.
    """
    shard_set = open_set(task.folder)
    shard = shard_set.shards[task.shard]
    sources, vocab_size = len(shard_set.manifest.sources), shard_set.vocab_size
    special = np.array(sorted(shard_set.manifest.tokenizer.special_tokens.values()), np.int64)
    figures = ShardFigures(
        shard.entry.split,
        np.zeros((sources, vocab_size), np.int64),
        np.zeros(vocab_size, np.int32),
        np.full(vocab_size, -1, np.int32),
        np.zeros((sources, BINS), np.int64),
        np.full(sources, 2**32, np.int64),
        np.zeros(sources, np.int64),
    )
    windows = None if task.counts_only else _Windows(task, figures, token_values(vocab_size))
    for stretch in iter_stretches(shard_set, shard):
        ids = stretch.tokens.astype(np.intp)
        lengths = stretch.ends - stretch.starts
        counted = np.bincount(
            ids + np.repeat(stretch.sources * vocab_size, lengths), minlength=sources * vocab_size
        ).reshape(sources, vocab_size)
        figures.counts += counted
        if task.counts_only:
            continue
        _count_documents(figures, stretch, ids)
        figures.lengths += np.bincount(stretch.sources * BINS + bin_lengths(lengths), minlength=sources * BINS).reshape(
            sources, BINS
        )
        np.minimum.at(figures.shortest, stretch.sources, lengths)
        np.maximum.at(figures.longest, stretch.sources, lengths)
        _find_misplaced(figures, stretch, special, shard_set.eos_id, counted.sum(axis=0))
        if windows is not None:
            windows.look(stretch)
    if windows is not None:
        windows.finish()
    return figures


def _count_documents(figures: ShardFigures, stretch: Stretch, ids: npt.NDArray[np.intp]) -> None:
    documents = figures.documents
    for start, end in zip(stretch.starts.tolist(), stretch.ends.tolist(), strict=True):
        # An id that is repeated in the index is still added to once: that is what is wanted here.
        documents[ids[start:end]] += 1
    numbers = np.arange(stretch.document, stretch.document + len(stretch.starts), dtype=np.int32)
    figures.example[ids] = np.repeat(numbers, stretch.ends - stretch.starts)


def _find_misplaced(
    figures: ShardFigures,
    stretch: Stretch,
    special: npt.NDArray[np.int64],
    eos_id: int,
    counted: npt.NDArray[np.int64],
) -> None:
    """Find documents that hold a special id anywhere but EOS at the end; looks closer only where the counts say so."""
    ended = stretch.tokens[stretch.ends - 1] == eos_id
    if int(counted[special].sum()) == len(stretch.ends) == int(counted[eos_id]) and bool(ended.all()):
        return
    inside = np.isin(stretch.tokens, special)
    inside[stretch.ends[ended] - 1] = False
    places = np.flatnonzero(inside)
    rows = np.searchsorted(stretch.ends, places, "right")
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        entry = (stretch.document + row, int(stretch.tokens[place]))
        if len(figures.misplaced) < MAX_MISPLACED and entry not in figures.misplaced:
            figures.misplaced.append(entry)


@lru_cache(maxsize=1)
def _load_grams(path: Path) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Return the validation n-grams, sorted, and a bitmap of their leading bits; once a process."""
    grams = np.load(path)
    bitmap = np.zeros(1 << BITMAP_BITS, np.bool_)
    bitmap[grams >> np.uint64(64 - BITMAP_BITS)] = True
    return grams, bitmap


class _Windows:
    """Takes the samples of windows from a shard's stretches."""

    def __init__(self, task: ShardTask, figures: ShardFigures, values: npt.NDArray[np.uint64]):
        self._task, self._figures, self._values = task, figures, values
        self._windows: list[npt.NDArray[Any]] = []
        self._grams: list[npt.NDArray[Any]] = []
        self._wanted = _load_grams(task.grams) if task.grams else None

    def look(self, stretch: Stretch) -> None:
        """Take what is sampled of a stretch."""
        keys = split_hashes(stretch.hashes)[:, 0]
        if self._figures.split == "train":
            self._take_passages(stretch, keys)
        grams = hash_windows(stretch.tokens, stretch.starts, stretch.ends, width=GRAM_TOKENS, values=self._values)
        if self._figures.split == "train":
            self._take_sketches(stretch, keys, grams)
        self._take_grams(stretch, keys, grams)

    def finish(self) -> None:
        """Join what was taken."""
        if self._windows:
            windows = np.concatenate(self._windows)
            order = np.lexsort((windows["key"], windows["hash"]))
            windows = windows[order]
            new = np.r_[
                True, (windows["hash"][1:] != windows["hash"][:-1]) | (windows["key"][1:] != windows["key"][:-1])
            ]
            self._figures.windows = windows[new]
        if self._grams:
            found = np.concatenate(self._grams)
            if self._figures.split == "train":  # one place is enough for each
                found = found[np.unique(found["hash"], return_index=True)[1]]
            self._figures.grams = found

    def _take_passages(self, stretch: Stretch, keys: npt.NDArray[np.uint64]) -> None:
        rates = self._task.rates
        chosen = np.flatnonzero(keys % np.uint64(rates.passages) == 0)
        self._figures.passage_documents += len(chosen)
        lengths = (stretch.ends - stretch.starts)[chosen]
        # A sampled document that is long enough for one window; the others have nothing to show.
        chosen, lengths = chosen[lengths > WINDOW_TOKENS], lengths[lengths > WINDOW_TOKENS]
        if not len(chosen):
            return
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1])) + np.repeat(stretch.starts[chosen] - (ends - lengths), lengths)
        tokens = stretch.tokens[places]
        hashes = hash_windows(tokens, ends - lengths, ends, width=WINDOW_TOKENS, values=self._values)
        kept = np.flatnonzero((hashes % np.uint64(rates.windows) == 0) & (hashes != NO_WINDOW))
        self._windows.append(_found(stretch, keys, hashes[kept], chosen[np.searchsorted(ends, kept, "right")]))

    def _take_sketches(self, stretch: Stretch, keys: npt.NDArray[np.uint64], grams: npt.NDArray[np.uint64]) -> None:
        smallest = np.minimum.reduceat(grams, stretch.starts)
        long = stretch.ends - stretch.starts > GRAM_TOKENS + MIN_GRAMS
        # Near-duplicates mostly share the smallest hash; mixed anew, since small values are not evenly spread.
        sampled = long & (mix(smallest + np.uint64(1)) % np.uint64(self._task.rates.documents) == 0)
        for row in np.flatnonzero(sampled).tolist():
            own = np.sort(grams[stretch.starts[row] : stretch.ends[row] - GRAM_TOKENS])
            own = own[np.r_[True, own[1:] != own[:-1]]]  # np.unique hashes first: ten times as slow here
            sketch = Sketch(
                int(own[0]),
                int(keys[row]),
                self._task.shard,
                stretch.document + row,
                int(stretch.sources[row]),
                own[:SKETCH_SIZE].copy(),
            )
            self._figures.sketches.append(sketch)

    def _take_grams(self, stretch: Stretch, keys: npt.NDArray[np.uint64], grams: npt.NDArray[np.uint64]) -> None:
        if self._figures.split == "train" and self._wanted is None:
            return
        places = np.flatnonzero(grams & np.uint64(GRAM_RATE - 1) == 0)  # NO_WINDOW is odd: never among them
        if self._wanted is not None and self._figures.split == "train":
            known, bitmap = self._wanted
            hashes = grams[places]
            maybe = bitmap[hashes >> np.uint64(64 - BITMAP_BITS)]
            places, hashes = places[maybe], hashes[maybe]
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            places = places[known[at] == hashes] if len(known) else places[:0]
        rows = np.searchsorted(stretch.ends, places, "right")
        if self._figures.split == "val":
            mine = keys[rows] % np.uint64(self._task.rates.val_documents) == 0
            places, rows = places[mine], rows[mine]
        if len(places):
            self._grams.append(_found(stretch, keys, grams[places], rows))


def _found(
    stretch: Stretch, keys: npt.NDArray[np.uint64], hashes: npt.NDArray[np.uint64], rows: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    found = np.empty(len(hashes), Found)
    found["hash"], found["document"], found["key"] = hashes, rows + stretch.document, keys[rows]
    return found
