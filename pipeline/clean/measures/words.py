"""Words: the longest runs of characters that are not white space, as Gopher has them.

White space is what Python's `str.split` takes for it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean.measures.batch import (
    BLOCK_BYTES,
    Batch,
    Measure,
    divide,
    find_runs,
    max_parts,
    sum_before,
    sum_parts,
)

if TYPE_CHECKING:
    import numpy.typing as npt

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""The words of Rae et al. 2021, appendix A.1."""


class Words:
    """The words of a batch, in order; none goes on from one document to the next."""

    def __init__(self, batch: Batch):
        self._batch = batch
        self.starts, self.stops = find_runs(~batch.white, batch.offsets)
        """Positions of each word's first byte and behind its last, `(words,)`."""
        self.offsets = np.searchsorted(self.starts, batch.offsets)
        """The words of document i are those from offsets[i] to offsets[i + 1], `(documents + 1,)`."""
        self.count = np.diff(self.offsets)
        """Words of each document, `(documents,)`."""

    @cached_property
    def num_chars(self) -> npt.NDArray[np.int64]:
        """Characters of each word, `(words,)`."""
        return self._batch.chars_between(self.starts, self.stops)

    @cached_property
    def chars_before(self) -> npt.NDArray[np.int64]:
        """Characters of all words before each one, and of all, `(words + 1,)`."""
        return sum_before(self.num_chars)

    @cached_property
    def document_chars(self) -> npt.NDArray[np.int64]:
        """Characters of the words of each document: of all its text without white space, `(documents,)`."""
        return np.diff(self.chars_before[self.offsets])


def _count(batch: Batch) -> npt.NDArray[np.int64]:
    return batch.table(Words).count


def _mean_chars(batch: Batch) -> npt.NDArray[np.float64]:
    words = batch.table(Words)
    return divide(words.document_chars, words.count)


def _longest_chars(batch: Batch) -> npt.NDArray[np.int64]:
    words = batch.table(Words)
    return max_parts(words.num_chars, words.offsets)


def _alphabetic(batch: Batch) -> npt.NDArray[np.float64]:
    words = batch.table(Words)
    found = batch.letters[words.starts]
    # Few words do not begin with a letter: only those are looked through.
    rest = np.flatnonzero(~found)
    if len(rest):
        bounds = np.stack([words.starts[rest], words.stops[rest]], axis=1).ravel()
        padded = np.append(batch.letters, False)  # the last word may end where the data ends
        found[rest] = np.logical_or.reduceat(padded, bounds)[::2]
    return divide(sum_parts(found, words.offsets), words.count)


def _stop_words(batch: Batch) -> npt.NDArray[np.int64]:
    words = batch.table(Words)
    lengths = words.stops - words.starts
    short = np.flatnonzero(lengths <= max(map(len, STOP_WORDS)))
    # Setting this bit turns capitals into small letters, and no other byte into a letter.
    keys = batch.read_prefixes(words.starts[short], words.stops[short]) | _SPACES[lengths[short]]
    slots = keys * _STOP_FACTOR >> _STOP_SHIFT
    found = np.flatnonzero(_STOP_KEYS[slots] == keys)
    occurs = np.zeros((len(batch), len(_STOP_KEYS)), bool)
    occurs[np.searchsorted(words.offsets, short[found], "right") - 1, slots[found]] = True
    return occurs.sum(axis=1)


def _place_stop_words() -> tuple[np.uint64, npt.NDArray[np.uint64]]:
    """Return a factor that gives each stop word a slot of its own, by its first bits, and the slots."""
    keys = np.array([int.from_bytes(word.encode(), "little") for word in STOP_WORDS], np.uint64)
    factor = np.uint64(0x9E3779B97F4A7C15)
    while len(set((keys * factor >> _STOP_SHIFT).tolist())) < len(keys):
        factor += np.uint64(2)
    slots = np.zeros(1 << 64 - int(_STOP_SHIFT), np.uint64)
    slots[keys * factor >> _STOP_SHIFT] = keys
    return factor, slots


_SPACES = np.array([int.from_bytes(b" " * size, "little") for size in range(BLOCK_BYTES + 1)], np.uint64)
_STOP_SHIFT = np.uint64(58)
_STOP_FACTOR, _STOP_KEYS = _place_stop_words()


def _per_word(batch: Batch, count: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return divide(count, batch.table(Words).count)


def _hashes(batch: Batch) -> npt.NDArray[np.float64]:
    return _per_word(batch, batch.count(batch.data == ord("#")))


def _ellipses(batch: Batch) -> npt.NDArray[np.float64]:
    dots = batch.data == ord(".")
    triples = dots[:-2] & dots[1:-1] & dots[2:]
    count = np.zeros(len(batch), np.int64)
    if triples.any():
        starts, stops = find_runs(dots, batch.offsets)
        count += sum_parts((stops - starts) // 3, np.searchsorted(starts, batch.offsets))
    if not batch.is_ascii:
        leads = np.flatnonzero(batch.data == 0xE2)
        count += batch.count_at(leads[batch.matches(leads, "…".encode())])
    return _per_word(batch, count)


def _newlines(batch: Batch) -> npt.NDArray[np.float64]:
    return _per_word(batch, batch.count_at(batch.newlines))


MEASURES = {
    "words": Measure("words, split at white space", _count),
    "mean_word_chars": Measure("mean length of the words, in characters", _mean_chars),
    "longest_word_chars": Measure("length of the longest word, in characters", _longest_chars),
    "alphabetic_words": Measure("share of the words that have a letter", _alphabetic),
    "stop_words": Measure(f"how many of the words {', '.join(STOP_WORDS)} occur, in any case", _stop_words),
    "hashes_per_word": Measure("number signs (#) for each word", _hashes),
    "ellipses_per_word": Measure("ellipses (... or …) for each word", _ellipses),
    "newlines_per_word": Measure("line feeds for each word", _newlines),
}
