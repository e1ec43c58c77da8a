"""Hits: the places in documents that hold an n-gram of an evaluation item.

Whether a document holds an item is decided when the set is mixed: only then is known which n-grams are common. Costs
20 ms per MB of English prose on one core with 12,651 items, 34 of Cyrillic, 60 of Chinese or Thai, 120 of Korean,
measured. Memory: 40 MB for so many items, and about 20 bytes for each byte of a slice of text, up to 100 where every
character is replaced.
"""

import re
from functools import lru_cache
from typing import cast

import numpy as np

from pipeline.arrow_arrays import split_by_size
from pipeline.clean.decontamination.items import LEAST_WORDS, LONG_WORDS, NGRAM_WORDS, Items, load_items
from pipeline.clean.decontamination.normal_form import (
    DOCUMENT_END,
    find_hashed_words,
    find_origins,
    hash_ngrams,
    normalise,
)
from pipeline.clean.tally import Documents
from shards.format.arrays import Bools, Int64s, Rows, UInt64s

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
_REPEATED_WORDS = 2 * _MOST_WORDS
"""Words of a long document that are searched with the next slice, too: those of an n-gram, and of one character."""
_UNCUT = re.compile(rb"[#;0-9A-Za-z\x80-\xbf]{0,99}")
"""What a slice takes of the next: the rest of a character or HTML entity."""
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
        texts = list(documents)
        parts = [np.zeros(0, HIT_DTYPE)]
        for first, last in split_by_size(np.diff(documents.offsets) + 1, SLICE_BYTES):
            # A long document is alone, and is not copied.
            text = DOCUMENT_END.join(texts[first:last]) if last - first > 1 else texts[first]
            ngrams, starts, stops = self._search(text).T
            begins = documents.offsets[first:last] - documents.offsets[first] + np.arange(last - first)
            own = begins.searchsorted(starts, "right") - 1
            rows = np.zeros(len(starts), HIT_DTYPE)
            rows["document"], rows["ngram"] = own + first, ngrams
            rows["start"], rows["stop"] = starts - begins[own], stops - begins[own]
            rows = rows[np.lexsort((rows["stop"], rows["start"], rows["document"]))]
            parts.append(rows[self._find_dense(rows)])
        return np.concatenate(parts)

    def _search(self, text: bytes | memoryview) -> Int64s:
        """Search documents slice by slice; return n-gram, first byte and one past the last of each hit, `(hits, 3)`."""
        parts = [np.zeros((0, 3), np.int64)]
        start, stop, size, done = 0, 0, SLICE_BYTES, 0
        while stop < len(text):
            stop = cast("re.Match[bytes]", _UNCUT.match(text, start + size)).end()
            normal, edits = normalise(bytes(text[start:stop]))
            words, places, _ = find_hashed_words(normal)
            if start:  # the beginning of the first word may be missing
                words, places = words[1:], places[1:]
            begin, end = start, len(text)
            if stop < end:  # what follows may belong to the last word
                if len(places) >= _REPEATED_WORDS:
                    edges = places[[-_REPEATED_WORDS, -1]]
                    begin, end = (start + int(place) for place in find_origins(edges[:, 0], edges[:, 1], edits)[0])
                if begin == start:
                    size *= 2  # words of many kilobytes
                    continue
            ends = np.flatnonzero(np.frombuffer(normal, np.uint8) == DOCUMENT_END[0])
            ngrams, starts, stops = self._match(words, places, ends).T
            starts, stops = find_origins(starts, stops, edits)
            hits = np.stack([ngrams, start + starts, start + stops], axis=1)
            parts.append(hits[(done < hits[:, 2]) & (hits[:, 2] <= end)])  # each is found once
            start, size, done = begin, SLICE_BYTES, end
        return np.concatenate(parts)

    def _match(self, words: UInt64s, places: Int64s, ends: Int64s) -> Int64s:
        """Return the hits of items among words, given where documents end, `(hits, 3)`."""
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
        found = np.minimum(self._ngrams.searchsorted(hashes), len(self._ngrams) - 1)
        held = self._ngrams[found] == hashes
        starts, stops = places[firsts[held], 0], places[lasts[held], 1]
        # Not from one document into the next.
        within = cast("Bools", ends.searchsorted(starts) == ends.searchsorted(stops))
        return np.stack([found[held], starts, stops], axis=1)[within]

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
