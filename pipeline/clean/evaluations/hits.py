"""Hits: the places in documents that hold an n-gram of an evaluation item.

Whether a document holds an item is decided when the set is mixed: only then is known which n-grams are common. Costs
20 to 30 ms per MB of prose on one core: 20 where no n-gram of 5,000 items occurs, 30 where 65,000 do. Memory: about 60
bytes for each byte of a slice of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np

from pipeline.clean.documents import Documents
from pipeline.clean.evaluations.items import LEAST_WORDS, NGRAM_WORDS, Items, load_items
from pipeline.clean.evaluations.word_ngrams import Ngrams, find_hashed_words

if TYPE_CHECKING:
    import numpy.typing as npt

HIT_DTYPE = np.dtype(
    [
        ("document", "<u4"),
        ("ngram", "<u4"),  # place in `Items.ngrams`
        ("start", "<u8"),  # first byte in the document's text
        ("stop", "<u8"),  # one past its last
    ]
)
SLICE_BYTES = 1 << 20
"""Text is searched in slices of about this size: their tables stay in the processor's cache."""
_SPARE_BITS = 4
"""A filter has 2^4 slots for each hash: one in 16 of the others is let through."""


class _Filter:
    """A table in which given hashes are always found, and others seldom."""

    def __init__(self, hashes: npt.NDArray[np.uint64]):
        bits = max(10, len(hashes).bit_length() + _SPARE_BITS)
        self._shift = np.uint64(64 - bits)
        self._slots = np.zeros(1 << bits, bool)
        self._slots[hashes >> self._shift] = True

    def find(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the places of the hashes that may be among the given ones."""
        return np.flatnonzero(self._slots[hashes >> self._shift])


class HitFinder:
    """Finds the n-grams of items in documents. The tables of `Items` are made once."""

    def __init__(self, items: Items):
        self._ngrams = items.ngrams
        self._sizes = items.sizes
        self._likely = _Filter(items.ngrams)
        self._likely_beginnings = _Filter(items.beginnings)

    def find(self, documents: Documents) -> npt.NDArray[np.void]:
        """Return the hits in documents, `HIT_DTYPE (hits,)`, in their order; `document` is the place in `documents`."""
        data = np.frombuffer(documents.data, np.uint8)
        parts = [np.zeros(0, HIT_DTYPE)]
        for first, edges in _cut(documents.offsets):
            own = data[edges[0] : edges[-1]]
            if len(own) > SLICE_BYTES:
                rows = self._find_in_long(own)
            else:
                offsets = edges - edges[0]
                rows = self._match(*find_hashed_words(own, offsets), offsets)
            rows["document"] += first
            parts.append(rows)
        return np.concatenate(parts)

    def _find_in_long(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
        """Return the hits in one document, searched slice by slice."""
        whole = np.array([0, len(data)])
        parts: list[npt.NDArray[np.void]] = []
        start, size, done = 0, SLICE_BYTES, 0
        while True:
            stop = min(len(data), start + size)
            words, places = find_hashed_words(data[start:stop], np.array([0, stop - start]))
            if stop < len(data) and len(places) and places[-1, 1] == stop - start:
                words, places = words[:-1], places[:-1]  # the slice may end inside the word
            if stop < len(data) and len(places) < NGRAM_WORDS:
                size *= 2  # words of many kilobytes
                continue
            rows = self._match(words, places + start, whole)
            parts.append(rows[rows["stop"] > done])  # the others were found before
            if stop == len(data):
                return np.concatenate(parts)
            # Begin again so many words before the end that no n-gram is lost.
            done = start + int(places[-1, 1])
            start, size = start + int(places[1 - NGRAM_WORDS, 0]), SLICE_BYTES

    def _match(
        self, words: npt.NDArray[np.uint64], places: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.void]:
        """Return the hits among words, given the offsets of their documents."""
        ngrams = Ngrams(words)
        likely = self._likely_beginnings.find(ngrams.hash_all(LEAST_WORDS))
        parts = [np.zeros(0, HIT_DTYPE)]
        for size in self._sizes:
            begins = likely[: np.searchsorted(likely, len(words) - size, "right")]
            hashes = ngrams.hash_at(begins, size)
            kept = self._likely.find(hashes)
            begins, hashes = begins[kept], hashes[kept]
            found = np.searchsorted(self._ngrams, hashes)
            held = self._ngrams[np.minimum(found, len(self._ngrams) - 1)] == hashes
            begins, found = begins[held], found[held]
            starts, stops = places[begins, 0], places[begins + size - 1, 1]
            document = cast("npt.NDArray[np.int64]", offsets.searchsorted(starts, "right")) - 1
            inside = stops <= offsets[document + 1]  # not from one document into the next
            rows = np.zeros(int(inside.sum()), HIT_DTYPE)
            rows["document"], rows["ngram"] = document[inside], found[inside]
            rows["start"], rows["stop"] = ((edge - offsets[document])[inside] for edge in (starts, stops))
            parts.append(rows)
        rows = np.concatenate(parts)
        return rows[np.lexsort((rows["stop"], rows["start"], rows["document"]))]


@lru_cache(maxsize=1)
def load_finder(task: str) -> HitFinder:
    """Return the finder of hits for the items that a task has read; it is made once per process.

    Raises:
        WorkFileDamagedError: as `load_items`.
    """
    return HitFinder(load_items(task))


def _cut(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield slices of about `SLICE_BYTES`, one document at least: the first one's number, and their offsets."""
    first = 0
    while first < len(offsets) - 1:
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + SLICE_BYTES, "right")) - 1)
        yield first, offsets[first : last + 1]
        first = last
