"""Words of several tokens: where they are, their hashes, and candidates for words that fill some documents.

A word is a longest run of tokens that are all letters and digits, or all punctuation, and of which only the first
begins with white space: what the pretokenizer of a byte-level BPE does not cut, about. Words of one token are ids, and
are counted as such.

Equal words have equal hashes in every document: polynomials of random values of their tokens (mod 2^64), as in
`shards.audit.ngrams`; two different words have the same hash once in 2^64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shards.audit.ngrams import finalize, token_values
from shards.audit.spread import count_spread_pairs, find_firsts
from shards.format.arrays import Int64s, Rows, UInt64s
from shards.format.document_blocks import DocumentBlock
from shards.format.vocabulary import Vocabulary

WORD_SHARE = 0.01
"""A word is a candidate in documents in which it makes up this share of the tokens."""
MAX_CANDIDATES = 1 << 18
"""Rows of the Misra-Gries summary: 8 MB, and three times that while they are sorted."""
MAX_WORDS = 1 << 16
"""Candidates that are counted exactly: 512 kB of hashes, and their rows of `Spread`."""

_BASE = 0x9E3779B97F4A7C15

_OTHER, _LETTERS, _PUNCTUATION, _LEADING = 0, 1, 2, 4
"""Kinds of entries; `_LEADING` is a bit."""

_ROW = np.dtype([("hash", "<u8"), ("weight", "<i8"), ("shard", "<i4"), ("start", "<i8"), ("width", "<i4")])
"""A candidate: its hash, its occurrences in the documents that it fills, and the place of one of them."""


class Words(NamedTuple):
    """The words of several tokens of a block, in order: int64 and uint64 `(words,)`.

    Attributes:
        starts: first token in the block.
        widths: tokens of the word, at least 2.
        rows: its document's number in the block.
        hashes: its hash.
    """

    starts: Int64s
    widths: Int64s
    rows: Int64s
    hashes: UInt64s


class WordFinder:
    """Finds the words of several tokens in blocks of documents."""

    def __init__(self, vocabulary: Vocabulary):
        self._kinds = np.array([_kind(entry) for entry in vocabulary.entries], np.int8)
        self._kinds[vocabulary.special_mask()] = _OTHER
        self._values = token_values(len(vocabulary))

    def find(self, block: DocumentBlock) -> Words:
        """Return the words of several tokens of a block."""
        # A word begins at white space, where the kind changes, and with a document.
        kinds = self._kinds[block.tokens]
        begins = kinds > _LEADING
        kinds &= _LEADING - 1
        begins[1:] |= kinds[1:] != kinds[:-1]
        begins[block.starts] = True
        starts = np.flatnonzero(begins)
        widths = np.diff(np.append(starts, len(kinds)))
        # Words of one token are ids, and are counted as such.
        several = (widths > 1) & (kinds[starts] != _OTHER)
        starts, widths = starts[several], widths[several]
        return Words(starts, widths, block.rows_at(starts), self._hash(block, starts, widths))

    def _hash(self, block: DocumentBlock, starts: Int64s, widths: Int64s) -> UInt64s:
        if not len(starts):
            return np.empty(0, np.uint64)
        # Tokens of all words one after another, each with its place in its word.
        first = np.cumsum(widths) - widths
        within = np.arange(int(widths.sum())) - np.repeat(first, widths)
        tokens = block.tokens[within + np.repeat(starts, widths)]
        # The polynomial of a word: the n-th token times the n-th power of the base.
        factors = np.full(int(widths.max()), _BASE, np.uint64)
        factors[0] = 1
        powers = np.multiply.accumulate(factors)
        return finalize(np.add.reduceat(self._values[tokens] * powers[within], first))


class Candidates:
    """The most frequent words among those that make up `WORD_SHARE` of some documents, by a Misra-Gries summary.

    Summaries of parts are merged as by Agarwal et al. (2012), Mergeable Summaries: add up, then subtract the weight of
    the first row that does not fit from all. A weight is then too low by at most `lost`, and never too high.
    """

    def __init__(self) -> None:
        self._waiting: list[Rows] = []
        self._number = 0
        self.lost = 0

    def add(self, words: Words, lengths: Int64s, *, shard: int, start: int) -> None:
        """Add the words of a block.

        Args:
            words: the words.
            lengths: tokens of the block's documents, int64 `(documents,)`.
            shard: number of the shard.
            start: the block's first token in the shard.
        """
        hashes, first, terms = np.unique(words.hashes, return_index=True, return_inverse=True)
        pairs = count_spread_pairs(words.rows, terms.astype(np.int64), len(hashes))
        widths = words.widths[first]
        # Only words that fill a part of some document can be concentrated.
        heavy = (pairs.counts > 1) & (pairs.counts * widths[pairs.terms] >= WORD_SHARE * lengths[pairs.rows])
        held, weights = pairs.terms[heavy], pairs.counts[heavy]
        rows = np.empty(len(held), _ROW)
        rows["hash"], rows["weight"], rows["shard"] = hashes[held], weights, shard
        rows["start"], rows["width"] = words.starts[first[held]] + start, widths[held]
        self._wait_for(rows)

    def merge(self, other: Candidates) -> None:
        """Add the candidates of another shard."""
        self.lost += other.lost
        self._wait_for(other.rows())

    def rows(self) -> Rows:
        """Return one row for each candidate, by hash; no more than `MAX_CANDIDATES`."""
        rows = np.concatenate([np.empty(0, _ROW), *self._waiting])
        rows = rows[np.argsort(rows["hash"], kind="stable")]
        first = find_firsts(rows["hash"])
        found = rows[first]
        if len(found):
            found["weight"] = np.add.reduceat(rows["weight"], first)
        # Misra-Gries: the weight of the first that does not fit is subtracted from all.
        if len(found) > MAX_CANDIDATES:
            cut = int(np.partition(found["weight"], -MAX_CANDIDATES - 1)[-MAX_CANDIDATES - 1])
            found["weight"] -= cut
            found = found[found["weight"] > 0]
            self.lost += cut
        self._waiting, self._number = [found], len(found)
        return found

    def _wait_for(self, rows: Rows) -> None:
        self._waiting.append(rows)
        self._number += len(rows)
        if self._number > 2 * MAX_CANDIDATES:
            self.rows()

    def choose(self, below: int) -> Rows:
        """Return the candidates that may have `below` occurrences, half as many if they fill documents; by hash."""
        rows = self.rows()
        rows = rows[2 * (rows["weight"] + self.lost) >= below]
        # Of too many, the heaviest; then by hash, to be searched for.
        heaviest = np.argsort(-rows["weight"], kind="stable")[:MAX_WORDS]
        return rows[np.sort(heaviest)]


def _kind(entry: bytes) -> int:
    """Return the kind of an entry, plus `_LEADING` if it begins with white space."""
    text = entry.lstrip()
    letters = [byte >= 0x80 or chr(byte).isalnum() for byte in text]
    # White space inside an entry joins two words: such an entry is in none.
    if not text or any(byte <= 0x20 for byte in text):
        kind = _OTHER
    else:
        kind = _LETTERS if all(letters) else _OTHER if any(letters) else _PUNCTUATION
    return kind + (_LEADING if len(text) < len(entry) else 0)
