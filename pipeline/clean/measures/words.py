"""Words: maximal runs of characters that are not white space, as Gopher has them.

White space is what Python's `str.split` takes for it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean.measures.batch import Batch, Measure, divide

if TYPE_CHECKING:
    import numpy.typing as npt


class Words:
    """The words of a batch, in order; none goes on from one document to the next."""

    def __init__(self, batch: Batch):
        self._batch = batch
        inside = ~batch.white
        begins, ends = inside.copy(), inside.copy()
        # A word begins after white space or at the first byte of a document.
        begins[1:] &= batch.white[:-1]
        ends[:-1] &= batch.white[1:]
        firsts, lasts = batch.offsets[:-1], batch.offsets[1:] - 1
        begins[firsts] = inside[firsts]
        ends[lasts] = inside[lasts]
        self.starts = np.flatnonzero(begins)
        """Position of each word's first byte, `(words,)`."""
        self.stops = np.flatnonzero(ends) + 1
        """Position behind each word's last byte, `(words,)`."""
        self.offsets = np.searchsorted(self.starts, batch.offsets)
        """The words of document i are those from offsets[i] to offsets[i + 1], `(documents + 1,)`."""
        self.count = np.diff(self.offsets)
        """Words of each document, `(documents,)`."""

    @cached_property
    def chars(self) -> npt.NDArray[np.int64]:
        """Characters of the words of each document, `(documents,)`."""
        size = np.concatenate([[0], np.cumsum(self.stops - self.starts)])
        return np.diff(size[self.offsets]) - self._batch.count(self._batch.word_continuations)


def _count(batch: Batch) -> npt.NDArray[np.int64]:
    return batch.table(Words).count


def _mean_chars(batch: Batch) -> npt.NDArray[np.float64]:
    words = batch.table(Words)
    return divide(words.chars, words.count)


MEASURES = {
    "words": Measure("words, split at white space", _count),
    "mean_word_chars": Measure("mean length of the words, in characters", _mean_chars),
}
