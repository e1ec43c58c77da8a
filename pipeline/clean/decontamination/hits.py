"""Hits: the places in documents that hold an n-gram of an evaluation item.

Whether a document holds an item is decided when the set is mixed: only then is known which n-grams are common. Costs
20 ms per MB of English prose on one core with 12,651 items, 34 of Cyrillic, 60 of Chinese or Thai, 120 of Korean,
measured. Memory: 40 MB for so many items; about 15 bytes for each byte of a slice of text, up to 100 where every
character is replaced; and for each byte of a batch the normal form, with 24 bytes for each character that is replaced.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np

from pipeline.clean.decontamination.items import LEAST_WORDS, LONG_WORDS, NGRAM_WORDS, Items, load_items
from pipeline.clean.decontamination.normal_form import (
    DOCUMENT_END,
    GAP,
    find_hashed_words,
    find_origins,
    hash_ngrams,
    normalise,
)
from pipeline.clean.tally import Documents

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Bools, Int64s, Rows, UInt64s

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
_WORD_END = re.compile(b"[%b%b]" % (GAP, DOCUMENT_END))
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
        text = DOCUMENT_END.join(documents)
        parts, edits, done = [b""], [np.zeros((0, 3), np.int64)], 0
        # No character or entity is in two pieces: its bytes, the first one aside, are none that begin a piece.
        for piece in re.findall(rb"(?s).{1,%d}[#;0-9A-Za-z\x80-\xbf]*" % SLICE_BYTES, text):
            normal, own = normalise(piece)
            parts.append(normal)
            edits.append(own + np.array([done, done, 0]))
            done += len(piece)
        ngrams, starts, stops = self._search(b"".join(parts)).T
        # From places in the normal form to bytes of the documents.
        starts, stops = find_origins(starts, stops, np.concatenate(edits))
        begins = documents.offsets[:-1] - documents.offsets[0] + np.arange(len(documents))
        rows = np.zeros(len(starts), HIT_DTYPE)
        rows["document"], rows["ngram"] = np.searchsorted(begins, starts, "right") - 1, ngrams
        rows["start"], rows["stop"] = (edges - begins[rows["document"]] for edges in (starts, stops))
        rows = rows[np.lexsort((rows["stop"], rows["start"], rows["document"]))]
        return rows[self._find_dense(rows)]

    def _search(self, text: bytes) -> Int64s:
        """Search documents in normal form slice by slice; return n-gram, first byte and one past the last of each hit.

        Returns:
            `(hits, 3)`, the bytes being those of the normal form.
        """
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == DOCUMENT_END[0])
        parts = [np.zeros((0, 3), np.int64)]
        start, stop, size, done = 0, 0, SLICE_BYTES, 0
        while stop < len(text):
            edge = _WORD_END.search(text, start + size)
            stop = edge.start() if edge else len(text)
            words, places, _ = find_hashed_words(text[start:stop])
            if edge:  # what follows may belong to the last words
                inside = places[:, 1] <= places[-1:, 0].max(initial=0)
                words, places = words[inside], places[inside]
                if len(places) < _MOST_WORDS:
                    size *= 2  # words of many kilobytes
                    continue
            places += start
            hits = self._match(words, places, ends)
            parts.append(hits[hits[:, 2] > done])  # the others were found before
            if edge:  # begin again so many words before the end that no n-gram is lost
                start, size, done = int(places[1 - _MOST_WORDS, 0]), SLICE_BYTES, int(places[-1, 1])
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
        found = np.minimum(np.searchsorted(self._ngrams, hashes), len(self._ngrams) - 1)
        held = self._ngrams[found] == hashes
        starts, stops = places[firsts[held], 0], places[lasts[held], 1]
        # Not from one document into the next.
        own = cast("Bools", np.searchsorted(ends, starts) == np.searchsorted(ends, stops))
        return np.stack([found[held], starts, stops], axis=1)[own]

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
