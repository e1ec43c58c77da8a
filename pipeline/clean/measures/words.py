"""Words: the longest runs of characters that are not white space, as Gopher has them.

White space is what Python's `str.split` takes for it.
"""

from __future__ import annotations

from functools import cache, cached_property
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean.measures.batch import (
    Batch,
    Measure,
    Ranks,
    count_parts,
    divide,
    find_runs,
    max_parts,
    sum_before,
    sum_parts,
)
from pipeline.clean.measures.hashes import hash_stretches

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

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of each word, `(words,)`."""
        return self.stops - self.starts

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """Hashes of the words, uint64 `(words,)`."""
        return hash_stretches(self._batch, self.starts, self.stops)

    @cached_property
    def documents(self) -> npt.NDArray[np.int64]:
        """The number of each word's document, `(words,)`."""
        return np.repeat(np.arange(len(self.count)), self.count)

    @cached_property
    def ranks(self) -> Ranks:
        """How many words begin before a position."""
        begins = ~self._batch.white
        begins[1:] &= self._batch.white[:-1]
        begins[self._batch.offsets[:-1]] = ~self._batch.white[self._batch.offsets[:-1]]
        return Ranks(begins)

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
    rest = np.flatnonzero(~found & (words.lengths > 1))
    found[rest] = batch.letter_ranks.before(words.stops[rest]) > batch.letter_ranks.before(words.starts[rest])
    return divide(count_parts(found, words.offsets), words.count)


def _stop_words(batch: Batch) -> npt.NDArray[np.int64]:
    words = batch.table(Words)
    shift, hashes, numbers = _hash_stop_words()
    slots = (words.hashes >> shift & _STOP_MASK).view(np.int64)
    found = np.flatnonzero(hashes.take(slots) == words.hashes)
    occurs = np.zeros((len(batch), len(STOP_WORDS)), bool)
    documents = words.documents[found] if len(batch) > 1 else np.zeros(len(found), np.int64)
    occurs[documents, numbers[slots[found]]] = True
    return occurs.sum(axis=1)


@cache
def _hash_stop_words() -> tuple[np.uint64, npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Return a shift that gives each stop word, in any case of its letters, a slot of its own by the bits of its hash.

    Returns:
        The shift; the hash in each slot, 0 in an empty one; and the number of its stop word.
    """
    cases = {
        "".join(chars).encode(): number
        for number, word in enumerate(STOP_WORDS)
        for chars in product(*zip(word, word.upper(), strict=True))
    }
    ends = np.cumsum([len(word) for word in cases])
    starts = np.append(0, ends[:-1])
    own = hash_stretches(Batch(np.frombuffer(b"".join(cases), np.uint8), np.append(0, ends)), starts, ends)
    hashes, numbers = np.zeros(_STOP_SLOTS, np.uint64), np.zeros(_STOP_SLOTS, np.int64)
    shift, slots = next(
        (np.uint64(shift), slots)
        for shift in range(64)
        for slots in [(own >> np.uint64(shift) & _STOP_MASK).view(np.int64)]
        if len(set(slots.tolist())) == len(slots)
    )
    hashes[slots], numbers[slots] = own, list(cases.values())
    return shift, hashes, numbers


_STOP_SLOTS = 1 << 11
"""So many that one shift of some gives 76 words slots of their own; their hashes are always the same."""
_STOP_MASK = np.uint64(_STOP_SLOTS - 1)


def _per_word(batch: Batch, count: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return divide(count, batch.table(Words).count)


def _hashes(batch: Batch) -> npt.NDArray[np.float64]:
    return _per_word(batch, batch.count(batch.data == ord("#")))


def _ellipses(batch: Batch) -> npt.NDArray[np.float64]:
    dots = batch.data == ord(".")
    triples = dots[:-2] & dots[1:-1] & dots[2:]
    for before in (1, 2):  # none goes on from one document to the next
        edges = batch.offsets[1:-1] - before
        triples[edges[(edges >= 0) & (edges < len(triples))]] = False
    count = np.zeros(len(batch), np.int64)
    positions = np.flatnonzero(triples)
    if len(positions):
        firsts = np.flatnonzero(np.diff(positions, prepend=-2) > 1)
        dots_of_run = np.diff(firsts, append=len(positions)) + 2
        count += sum_parts(dots_of_run // 3, np.searchsorted(positions[firsts], batch.offsets))
    if not batch.is_ascii:
        found = batch.leads[batch.data[batch.leads] == _ELLIPSIS[0]]
        count += batch.count_at(found[batch.matches(found, _ELLIPSIS)])
    return _per_word(batch, count)


_ELLIPSIS = "…".encode()


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
