"""How the occurrences of many terms are spread over documents: exact counts, in a few rows per term.

A term is anything with a number: an id of the vocabulary, or a word. Documents are counted by how often they hold the
term, in the bins of `shards.audit.histogram`: a term with any number of documents takes a few dozen rows. So the
documents with the most occurrences of a term, as many as hold more than half of them all, are counted exactly, with
their tokens, to the width of a bin (one below 64 occurrences, 1.6 % above).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shards.audit.histogram import BINS, bin_lengths
from shards.format.arrays import Int64s, Rows

COMPRESS_ROWS = 1 << 20
"""Rows that wait before rows of the same bin are added up: 32 MB."""


class Pairs(NamedTuple):
    """How often each document of a block holds each term: `rows`, `terms` and `counts`, int64 `(pairs,)`.

    Sorted by term, then by row.
    """

    rows: Int64s
    terms: Int64s
    counts: Int64s


def count_spread_pairs(rows: Int64s, terms: Int64s, size: int) -> Pairs:
    """Count the pairs of documents and terms.

    Args:
        rows: the document of each occurrence, ascending.
        terms: its term, `0 <= term < size`.
        size: the number of terms.
    """
    order = _sort(terms, size)
    terms, rows = terms[order], rows[order]
    first = find_firsts(terms, rows)
    return Pairs(rows[first], terms[first], np.diff(np.append(first, len(terms))))


class Spread:
    """Documents of each term by the term's occurrences in them."""

    def __init__(self) -> None:
        self._waiting: list[Int64s] = []
        self._number = 0

    def add(self, pairs: Pairs, lengths: Int64s) -> None:
        """Add the documents of a block, given their lengths in tokens, int64 `(documents,)`."""
        # One key for a term and a bin: rows of equal keys are added up later.
        keys = pairs.terms * BINS + bin_lengths(pairs.counts)
        self.merge(np.stack([keys, np.ones(len(keys), np.int64), pairs.counts, lengths[pairs.rows]]))

    def merge(self, rows: Int64s) -> None:
        """Add the rows of another spread."""
        self._waiting.append(rows)
        self._number += rows.shape[1]
        # Rows are added up when their number has doubled, so that adding stays linear.
        if self._number > 2 * self._waiting[0].shape[1] + COMPRESS_ROWS:
            self.rows()

    def rows(self) -> Int64s:
        """Return the counts of each term and bin, in order, int64 `(4, rows)`.

        The rows are: `term * BINS + bin`, documents, occurrences in them, tokens of them.
        """
        rows = np.concatenate([np.empty((4, 0), np.int64), *self._waiting], axis=1)
        order = _sort(rows[0], int(rows[0].max(initial=0)) + 1)
        keys = rows[0][order]
        first = find_firsts(keys)
        sums = [np.add.reduceat(values[order], first) for values in rows[1:]] if len(first) else rows[1:]
        found = np.stack([keys[first], *sums])
        self._waiting, self._number = [found], len(first)
        return found

    def halves(self) -> Int64s:
        """Return the documents with the most occurrences of each term, as many as hold more than half of them all.

        Returns:
            In order of terms, int64 `(terms, 6)`: the term; its occurrences; the documents that hold it; and of those
            with the most occurrences their number, the occurrences in them, and their tokens.
        """
        rows = self.rows()[:, ::-1]  # of each term, documents with the most occurrences first
        if not rows.shape[1]:
            return np.empty((0, 6), np.int64)
        # Sums over the rows of each term, from the documents with the most occurrences on.
        terms = rows[0] // BINS
        first = find_firsts(terms)
        sizes = np.diff(np.append(first, len(terms)))
        sums = np.cumsum(rows[1:], axis=1)
        sums -= np.repeat(sums[:, first] - rows[1:, first], sizes, axis=1)
        totals = sums[:, first + sizes - 1]
        # The first row at which the sum is more than half.
        more = np.flatnonzero(2 * sums[1] > np.repeat(totals[1], sizes))
        half = sums[:, more[find_firsts(terms[more])]]
        return np.stack([terms[first], totals[1], totals[0], *half], axis=1)[::-1]


def _sort(values: Int64s, size: int) -> Int64s:
    """Return the stable order of values from 0 to `size`, by 16 bits at a time: numpy then sorts by radix.

    That takes 7 ns a value and pass; `argsort` of int64 takes 50.
    """
    order = np.argsort(values.astype(np.uint16), kind="stable")
    for shift in range(16, max(1, size - 1).bit_length(), 16):
        order = order[np.argsort((values[order] >> shift).astype(np.uint16), kind="stable")]
    return order


def find_firsts(*columns: Rows) -> Int64s:
    """Return where each run of equal rows begins, int64 `(runs,)`, for columns of one length."""
    new = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(np.append(True, new)[: len(columns[0])])
