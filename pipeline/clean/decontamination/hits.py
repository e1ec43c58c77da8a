"""Hits: the places in documents that hold an n-gram of an evaluation item.

Whether a document holds an item is decided when the set is mixed: only then is known which n-grams are common. Costs
20 ms per MB of English prose on one core with 12,651 items, 34 of Cyrillic, 60 of Chinese or Thai, 170 of Korean,
measured. Memory: 40 MB for so many items, and about 15 bytes for each byte of a slice of text, up to 100 where every
character is replaced.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np

from pipeline.arrow_arrays import split_by_size
from pipeline.clean.decontamination.items import LEAST_WORDS, LONG_WORDS, NGRAM_WORDS, Items, load_items
from pipeline.clean.decontamination.normal_form import find_hashed_words, hash_ngrams
from pipeline.clean.tally import Documents

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Bools, Int64s, Rows, UInt8s, UInt64s

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
LEAST_HITS = 3
"""Hits of long items that must be close together to count."""
REACH = 4
"""How many times the bytes of an n-gram those are apart at most."""
_MOST_WORDS = max(NGRAM_WORDS, LONG_WORDS - 1)
"""Words of the longest n-gram that is searched for."""
_MOST_ENTITY_BYTES = 64
"""An HTML entity that a slice of a long document cuts is shorter."""
_SPARE_BITS = 4
"""A filter has two tables of 2^4 slots for each hash: one in 16 of the others is let through by each."""


class _Filter:
    """A table in which given hashes are always found, and others seldom."""

    def __init__(self, hashes: UInt64s):
        bits = max(10, len(hashes).bit_length() + _SPARE_BITS)
        self._shift, self._mask = np.uint64(64 - bits), np.uint64((1 << bits) - 1)
        self._high, self._low = np.zeros((2, 1 << bits), bool)
        self._high[hashes >> self._shift] = True
        self._low[hashes & self._mask] = True

    def find(self, hashes: UInt64s) -> Int64s:
        """Return the places of the hashes that may be hits: among the n-grams of items."""
        likely = np.flatnonzero(self._high[hashes >> self._shift])
        return likely[self._low[hashes[likely] & self._mask]]


class HitFinder:
    """Finds the n-grams of items in documents. The tables of `Items` are made once."""

    def __init__(self, items: Items):
        self._ngrams, rows = items.ngrams, items.rows
        # A short item is one n-gram: all of its words.
        short = (rows["size"] > 0) & (rows["words"] < LONG_WORDS)
        self._whole_sizes: list[int] = np.unique(rows["size"][short]).tolist()
        self._whole = np.zeros(len(items.ngrams), bool)
        self._whole[items.of_items[items.offsets[:-1][short]]] = True
        self._likely = _Filter(items.ngrams)
        self._likely_beginnings = _Filter(items.beginnings)

    def find(self, documents: Documents) -> Rows:
        """Return the hits in documents, `HIT_DTYPE (hits,)`, in their order; `document` is the place in `documents`."""
        data = np.frombuffer(documents.data, np.uint8)
        parts = [np.zeros(0, HIT_DTYPE)]
        for first, last in split_by_size(np.diff(documents.offsets), SLICE_BYTES):
            edges = documents.offsets[first : last + 1]
            own = data[edges[0] : edges[-1]]
            if len(own) > SLICE_BYTES:
                rows = self._find_in_long(own)
            else:
                offsets = edges - edges[0]
                rows = self._match(*find_hashed_words(own, offsets)[:2], offsets)
            rows = rows[self._find_dense(rows)]
            rows["document"] += first
            parts.append(rows)
        return np.concatenate(parts)

    def _find_in_long(self, data: UInt8s) -> Rows:
        """Return the hits in one document, searched slice by slice."""
        whole = np.array([0, len(data)])
        parts: list[Rows] = []
        start, size, done = 0, SLICE_BYTES, 0
        while True:
            stop = min(start + size, len(data))
            words, places, _ = find_hashed_words(data[start:stop], np.array([0, stop - start]))
            if stop < len(data):  # what follows may belong to the last word, or to an entity at the end
                last = min(int(places[-1, 0]), stop - start - _MOST_ENTITY_BYTES) if len(places) else 0
                inside = places[:, 1] <= last
                words, places = words[inside], places[inside]
            if stop < len(data) and (len(places) < _MOST_WORDS or not places[1 - _MOST_WORDS, 0]):
                size *= 2  # words of many kilobytes
                continue
            rows = self._match(words, places + start, whole)
            parts.append(rows[rows["stop"] > done])  # the others were found before
            if stop == len(data):
                return np.concatenate(parts)
            # Begin again so many words before the end that no n-gram is lost.
            done = start + int(places[-1, 1])
            start, size = start + int(places[1 - _MOST_WORDS, 0]), SLICE_BYTES

    def _match(self, words: UInt64s, places: Int64s, offsets: Int64s) -> Rows:
        """Return the hits of items among words, given the offsets of their documents."""
        # Long items by n-grams of one size, short ones by n-grams of their own size, where their beginnings are.
        parts: list[tuple[Int64s, UInt64s, Int64s]] = []
        beginnings = self._likely_beginnings.find(hash_ngrams(words, LEAST_WORDS)) if self._whole_sizes else None
        for size in {NGRAM_WORDS, *self._whole_sizes}:
            begins = None
            if size != NGRAM_WORDS and beginnings is not None:
                begins = beginnings[: np.searchsorted(beginnings, len(words) - size, "right")]
            hashes = hash_ngrams(words, size, begins)
            likely = self._likely.find(hashes)
            first = likely if begins is None else begins[likely]
            parts.append((first, hashes[likely], first + size - 1))
        firsts, hashes, lasts = (np.concatenate(column) for column in zip(*parts, strict=True))
        # The filter lets some through that are of no item.
        found = np.minimum(np.searchsorted(self._ngrams, hashes), len(self._ngrams) - 1)
        held = self._ngrams[found] == hashes
        starts, stops = places[firsts[held], 0], places[lasts[held], 1]
        document = cast("Int64s", offsets.searchsorted(starts, "right")) - 1
        inside = stops <= offsets[document + 1]  # not from one document into the next
        rows = np.zeros(int(inside.sum()), HIT_DTYPE)
        rows["document"], rows["ngram"] = document[inside], found[held][inside]
        rows["start"], rows["stop"] = ((edge - offsets[document])[inside] for edge in (starts, stops))
        return rows[np.lexsort((rows["stop"], rows["start"], rows["document"]))]

    def _find_dense(self, rows: Rows) -> Bools:
        """Return which hits count: short items, and those of which `LEAST_HITS` are close together.

        Everybody writes "at the end of the": alone, such an n-gram tells nothing of an item, and a corpus has many.
        """
        dense = self._whole[rows["ngram"]]
        places = np.flatnonzero(~dense)
        own, further = rows[places], LEAST_HITS - 1
        first, last = own[: len(own) - further], own[further:]
        reach = REACH * (first["stop"] - first["start"])
        close = (first["document"] == last["document"]) & (last["start"] - first["start"] <= reach)
        for place in range(LEAST_HITS):
            dense[places[np.flatnonzero(close) + place]] = True
        return dense


@lru_cache(maxsize=1)
def load_finder(task: str) -> HitFinder:
    """Return the finder of hits for the items that a task has read; it is made once per process.

    Raises:
        WorkFileDamagedError: as `load_items`.
    """
    return HitFinder(load_items(task))
