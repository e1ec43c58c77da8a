"""Repetition inside a document: lines, paragraphs and n-grams of words that occur before, as shares.

Two lines or paragraphs are equal when their words are. Characters are those of words: white space is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.clean.measures.batch import Batch, Measure, count_parts, divide, max_parts, sum_parts
from pipeline.clean.measures.hashes import find_first, find_repeated, hash_sequences
from pipeline.clean.measures.lines import Lines
from pipeline.clean.measures.words import Words
from shards.audit.ngrams import finalize

if TYPE_CHECKING:
    import numpy.typing as npt

TOP_SIZES = (2, 3, 4)
"""Words of the n-grams whose most frequent one is looked for: Rae et al. 2021, table A1."""
DUPLICATE_SIZES = (5, 6, 7, 8, 9, 10)
"""Words of the n-grams that are looked for a second time: Rae et al. 2021, table A1."""

_BASE = np.uint64(0xD6E8FEB86659FD93)


class RepeatedLines:
    """Which lines of a batch, and which paragraphs, are equal to an earlier one of their document."""

    def __init__(self, batch: Batch):
        words, lines = batch.table(Words), batch.table(Lines)
        keys = _hash_lines(words, lines)
        chars = words.chars_before[lines.lasts] - words.chars_before[lines.firsts]
        self.lines, self.line_chars = _share_repeated(keys, chars, lines.offsets, words.document_chars)
        """The share of each document's lines, and of its characters in them, `(documents,)`."""
        # A blank line is two line feeds with white space alone between them.
        feeds = batch.newline_ranks.before(lines.starts)
        begins = np.zeros(len(feeds) + 1, bool)
        begins[1:-1] = np.diff(feeds) > 1
        begins[lines.offsets] = True
        firsts = np.flatnonzero(begins[:-1])
        lasts = np.append(firsts[1:], len(feeds))[: len(firsts)]
        keys = hash_sequences(keys, firsts, lasts)
        chars = sum_parts(chars, np.append(firsts, len(feeds)))
        offsets = np.searchsorted(firsts, lines.offsets)
        self.paragraphs, self.paragraph_chars = _share_repeated(keys, chars, offsets, words.document_chars)
        """The share of each document's paragraphs, and of its characters in them, `(documents,)`."""


def _hash_lines(words: Words, lines: Lines) -> npt.NDArray[np.uint64]:
    """Return a key of each line, `(lines,)`: equal ones where all words of two lines of a document are equal.

    A line that shares its first and last word and its number of words with no other is not looked at closer.
    """
    counts = (lines.lasts - lines.firsts).view(np.uint64)
    keys = finalize(words.hashes[lines.firsts] * _BASE + words.hashes[lines.lasts - 1] + counts)
    close = find_repeated(find_first(keys, lines.offsets))
    close = close[counts[close] > 2]
    keys[close] = hash_sequences(words.hashes, lines.firsts[close], lines.lasts[close])
    return keys


def _share_repeated(
    keys: npt.NDArray[np.uint64],
    chars: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    document_chars: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    repeated = find_first(keys, offsets) != np.arange(len(keys))
    return (
        divide(count_parts(repeated, offsets), np.diff(offsets)),
        divide(sum_parts(chars * repeated, offsets), document_chars),
    )


class NGrams:
    """The n-grams of words that occur more than once in their document."""

    def __init__(self, batch: Batch):
        self._words = batch.table(Words)
        self.top: dict[int, npt.NDArray[np.float64]] = {}
        """Size -> share of each document's characters in its most frequent n-gram, `(documents,)`."""
        self.duplicate: dict[int, npt.NDArray[np.float64]] = {}
        """Size -> share of each document's characters in n-grams that occurred before, `(documents,)`."""
        hashes, offsets = self._words.hashes, self._words.offsets
        at, keys = np.arange(max(len(hashes) - 1, 0)), hashes[:-1] * _BASE + hashes[1:]
        edges = offsets[1:-1][(offsets[1:-1] > 0) & (offsets[1:-1] < len(hashes))] - 1
        keys[edges] = finalize(edges.view(np.uint64))  # an n-gram of two documents is equal to none
        for size in range(2, DUPLICATE_SIZES[-1] + 1):
            own = np.searchsorted(at, offsets)
            first = find_first(keys, own)
            repeated = find_repeated(first)
            at, keys, first = at.take(repeated), keys.take(repeated), first.take(repeated)
            is_first = first == repeated
            if size in TOP_SIZES:
                count = np.bincount(first)[first[is_first]]
                self.top[size] = self._share_of_top(at[is_first], count, size)
            if size in DUPLICATE_SIZES:
                self.duplicate[size] = self._share_of_duplicates(at[~is_first], size)
            # A longer n-gram can repeat only where this one does, here and at the next word: at size 3, 5 % of the
            # words of prose are left, and a third of those of code.
            left = np.flatnonzero(at[1:] == at[:-1] + 1)
            at = at[left]
            keys = keys[left] * _BASE + hashes[at + size]

    def _share_of_top(
        self, at: npt.NDArray[np.int64], count: npt.NDArray[np.int64], size: int
    ) -> npt.NDArray[np.float64]:
        """Return the share of the n-gram with the largest count; of several, of the longest one."""
        words = self._words
        chars = words.chars_before[at + size] - words.chars_before[at]
        offsets = np.searchsorted(at, words.offsets)
        best = max_parts(count << 32 | np.minimum(chars, 0xFFFFFFFF), offsets)
        # Overlapping occurrences ("ha ha ha") can count a character twice.
        return np.minimum(divide((best >> 32) * (best & 0xFFFFFFFF), words.document_chars), 1)

    def _share_of_duplicates(self, at: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.float64]:
        """Return the share of the characters in some n-grams; where they overlap, characters count once."""
        words = self._words
        ends = at + size
        ends[:-1] = np.minimum(ends[:-1], at[1:])
        chars = words.chars_before[ends] - words.chars_before[at]
        return divide(sum_parts(chars, np.searchsorted(at, words.offsets)), words.document_chars)


def _lines(batch: Batch) -> npt.NDArray[np.float64]:
    return batch.table(RepeatedLines).lines


def _line_chars(batch: Batch) -> npt.NDArray[np.float64]:
    return batch.table(RepeatedLines).line_chars


def _paragraphs(batch: Batch) -> npt.NDArray[np.float64]:
    return batch.table(RepeatedLines).paragraphs


def _paragraph_chars(batch: Batch) -> npt.NDArray[np.float64]:
    return batch.table(RepeatedLines).paragraph_chars


def _top(size: int, batch: Batch) -> npt.NDArray[np.float64]:
    return batch.table(NGrams).top[size]


def _duplicate(size: int, batch: Batch) -> npt.NDArray[np.float64]:
    return batch.table(NGrams).duplicate[size]


def _for_sizes(
    name: str, about: str, take: Callable[[int, Batch], npt.NDArray[Any]], sizes: tuple[int, ...]
) -> dict[str, Measure]:
    return {name.format(size): Measure(about.format(size), partial(take, size)) for size in sizes}


LINE_MEASURES = {
    "duplicate_lines": Measure("share of the lines that are equal to an earlier one", _lines),
    "duplicate_line_chars": Measure("share of the characters in lines that are equal to an earlier one", _line_chars),
    "duplicate_paragraphs": Measure("share of the paragraphs that are equal to an earlier one", _paragraphs),
    "duplicate_paragraph_chars": Measure(
        "share of the characters in paragraphs that are equal to an earlier one", _paragraph_chars
    ),
}
NGRAM_MEASURES = {
    **_for_sizes("top_{}gram_chars", "share of the characters in the most frequent {}-gram of words", _top, TOP_SIZES),
    **_for_sizes(
        "duplicate_{}gram_chars",
        "share of the characters in {}-grams of words that occurred before",
        _duplicate,
        DUPLICATE_SIZES,
    ),
}
