"""Words of text as numbers, alike in an evaluation set and in a document that copied from it.

A word is a run of letters and digits; capitals of ASCII count as small letters. Everything else separates words: marks,
white space, and the punctuation of Unicode that typesetting puts in place of ASCII's (quotation marks, dashes, spaces).
So line breaks, quotes and case do not hide a copy. Letters outside ASCII are compared byte by byte.

Hashes are polynomials modulo 2^64, mixed. Two given n-grams collide with a probability of about 2^-64.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_SMALL = np.zeros(256, np.uint8)
"""The byte that stands for a byte of a word; 0 for those between words."""
_SMALL[[*range(0x30, 0x3A), *range(0x61, 0x7B), *range(0x80, 0x100)]] = [
    *range(0x30, 0x3A),
    *range(0x61, 0x7B),
    *range(0x80, 0x100),
]
_SMALL[0x41:0x5B] = np.arange(0x61, 0x7B)

_WORD_BASE = np.uint64(0x9E3779B97F4A7C15)
_NGRAM_BASE = np.uint64(0xD1B54A32D192ED03)
"""Odd numbers, so that they have inverses modulo 2^64."""
_MIX = np.uint64(0xBF58476D1CE4E5B9)
"""The first multiplier of splitmix64's finaliser. Source: Steele, Lea and Flood 2014."""


def find_hashed_words(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Find the words of documents; none goes on from one document to the next.

    Args:
        data: their UTF-8, `(bytes,)`.
        offsets: where each document begins in it, and where the last one ends, `(documents + 1,)`.

    Returns:
        Hash of each word, uint64 `(words,)`; and its first byte and the one behind its last, int64 `(words, 2)`.
    """
    small = _SMALL[data]
    _clear_punctuation(data, small)
    inside = small != 0
    edges = np.zeros(len(data) + 1, bool)
    edges[1:-1] = inside[1:] != inside[:-1]
    edges[offsets] = True  # a word's edge, or one between two of a gap's bytes
    cuts = np.flatnonzero(edges)
    held = inside[cuts[:-1]]
    places = np.stack([cuts[:-1][held], cuts[1:][held]], axis=1)
    powers, inverses = _powers(int(_WORD_BASE), len(data))
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum(small * powers[: len(data)], out=sums[1:])
    return _mix((sums[places[:, 1]] - sums[places[:, 0]]) * inverses[places[:, 0]]), places


class Ngrams:
    """The n-grams of a sequence of words. n-grams of different sizes have different hashes."""

    def __init__(self, words: npt.NDArray[np.uint64]):
        self._powers, self._inverses = _powers(int(_NGRAM_BASE), len(words))
        self._sums = np.zeros(len(words) + 1, np.uint64)
        np.cumsum(words * self._powers[: len(words)], out=self._sums[1:])

    def hash_all(self, size: int) -> npt.NDArray[np.uint64]:
        """Return the hash of each n-gram of `size` words, in order, `(max(0, words - size + 1),)`."""
        if size >= len(self._sums):
            return np.zeros(0, np.uint64)
        sums = self._sums[size:] - self._sums[:-size]
        return _mix(sums * self._inverses[: len(sums)] + np.uint64(size))

    def hash_at(self, begins: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.uint64]:
        """Return the hashes of those that begin at given words and end at the last one or before, `(begins,)`."""
        sums = self._sums[begins + size] - self._sums[begins]
        return _mix(sums * self._inverses[begins] + np.uint64(size))


def _clear_punctuation(data: npt.NDArray[np.uint8], small: npt.NDArray[np.uint8]) -> None:
    """Let punctuation outside ASCII separate words: U+00A0 to U+00BF, U+2000 to U+206F and U+3000 to U+303F."""
    (leads,) = np.nonzero((data == 0xC2) | (data == 0xE2) | (data == 0xE3))
    leads = leads[leads < len(data) - 1]
    lead, second = data[leads], data[leads + 1]
    two = leads[(lead == 0xC2) & (second >= 0xA0)]
    third = leads[(lead != 0xC2) & (leads < len(data) - 2)]
    lead, second, last = data[third], data[third + 1], data[third + 2]
    general = (lead == 0xE2) & ((second == 0x80) | ((second == 0x81) & (last < 0xB0)))
    three = third[general | ((lead == 0xE3) & (second == 0x80))]
    for at, size in ((two, 2), (three, 3)):
        for byte in range(size):
            small[at + byte] = 0


@lru_cache(maxsize=4)
def _powers_up_to(base: int, size: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    powers, inverses = (
        np.multiply.accumulate(np.concatenate([[np.uint64(1)], np.full(size - 1, factor, np.uint64)]))
        for factor in (base, pow(base, -1, 1 << 64))
    )
    return powers, inverses


def _powers(base: int, size: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the powers of a base and of its inverse modulo 2^64, `(size or more,)` each."""
    return _powers_up_to(base, 1 << max(10, (size - 1).bit_length()))


def _mix(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    hashes ^= hashes >> np.uint64(30)
    hashes *= _MIX
    hashes ^= hashes >> np.uint64(31)
    return hashes
