"""Words of text as numbers, alike in an evaluation set and in a document that copied from it.

A word is a run of letters and digits in the text's normal form (`normal_form.py`); everything else separates words.

Hashes are mixed; those of n-grams are polynomials modulo 2^64. Two given n-grams collide with a probability of about
2^-64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xxhash

from pipeline.arrow_arrays import spread
from pipeline.clean.decontamination.normal_form import apply_edits, find_edits

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Int64s, UInt8s, UInt64s

_WORD_BASE = np.uint64(0x9E3779B97F4A7C15)
_NGRAM_BASE = np.uint64(0xD1B54A32D192ED03)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
"""The first multiplier of splitmix64's finaliser. Source: Steele, Lea and Flood 2014."""
_CHUNK_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
"""The bytes of a word in a number of 8 bytes, by how many there are."""
_LONG_WORD_BYTES = 512
"""Longer words, such as encoded images, are hashed one by one."""


def find_hashed_words(data: UInt8s, offsets: Int64s) -> tuple[UInt64s, Int64s]:
    """Find the words of documents; none goes on from one document to the next.

    Args:
        data: their UTF-8, `(bytes,)`.
        offsets: where each document begins in it, and where the last one ends, `(documents + 1,)`.

    Returns:
        Hash of each word, uint64 `(words,)`; and its first byte and the one behind its last, int64 `(words, 2)`.
    """
    small, edits = find_edits(data, offsets)
    starts, stops = _find_runs(small, offsets)
    hashes = _hash_words(small, starts, stops - starts)
    if not len(edits):
        return hashes, np.stack([starts, stops], axis=1)
    # Only the words that hold what is replaced are made again; there may be several of one, or none.
    owner = starts.searchsorted(edits[:, 0], "right") - 1
    edited = owner[np.append(True, owner[1:] != owner[:-1])]
    sizes = (stops - starts)[edited]
    ends = np.cumsum(sizes)
    given = spread(starts[edited], sizes)
    shift = starts[edited] - (ends - sizes)
    moved = edits.copy()
    moved[:, 0] -= shift[np.searchsorted(edited, owner)]
    normal, counts = apply_edits(small[given], moved)
    firsts, lasts = _find_runs(normal, np.append(0, np.cumsum(counts)[ends - 1]))
    origins = np.repeat(given, counts)
    places = np.stack([origins[firsts], origins[lasts - 1] + 1], axis=1)
    ends_at = origins[lasts - 1]
    at = np.minimum(edits[:, 0].searchsorted(ends_at), len(edits) - 1)
    places[:, 1] += np.where(edits[at, 0] == ends_at, edits[at, 1] - 1, 0)
    # Put them in place of the others.
    plain = np.ones(len(starts), bool)
    plain[edited] = False
    starts, stops, hashes = starts[plain], stops[plain], hashes[plain]
    before = starts.searchsorted(places[:, 0])
    hashes = np.insert(hashes, before, _hash_words(normal, firsts, lasts - firsts))
    return hashes, np.stack([np.insert(starts, before, places[:, 0]), np.insert(stops, before, places[:, 1])], axis=1)


def _find_runs(data: UInt8s, offsets: Int64s) -> tuple[Int64s, Int64s]:
    """Return where the runs of bytes that are not 0 begin and end; none goes on from one document to the next."""
    # Edges of runs: a byte that is inside, next to one that is not.
    inside = data != 0
    begins, ends = np.zeros(len(data) + 1, bool), np.zeros(len(data) + 1, bool)
    begins[:-1] = ends[1:] = inside
    begins[1:-1] &= ~inside[:-1]
    ends[1:-1] &= ~inside[1:]
    edges = offsets[(offsets > 0) & (offsets < len(data))]
    begins[edges], ends[edges] = inside[edges], inside[edges - 1]
    return np.flatnonzero(begins), np.flatnonzero(ends)


def _hash_words(data: UInt8s, starts: Int64s, sizes: Int64s) -> UInt64s:
    """Return the hash of each word: of its bytes, eight at a time."""
    # Overlapping numbers of eight bytes: the bytes at a word are one look-up.
    padded = np.append(data, np.zeros(8, np.uint8))
    chunks = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))  # the 8 bytes at each byte
    hashes = _mix(chunks[starts] & _CHUNK_MASKS[np.minimum(sizes, 8)])
    left = np.flatnonzero((sizes > 8) & (sizes <= _LONG_WORD_BYTES))
    done = 8
    while len(left):
        chunk = chunks[starts[left] + done] & _CHUNK_MASKS[np.minimum(sizes[left] - done, 8)]
        hashes[left] = _mix(hashes[left] * _WORD_BASE + chunk)
        done += 8
        left = left[sizes[left] > done]
    for word in np.flatnonzero(sizes > _LONG_WORD_BYTES).tolist():
        hashes[word] = xxhash.xxh3_64_intdigest(data[starts[word] : starts[word] + sizes[word]].tobytes())
    return hashes


def hash_ngrams(words: UInt64s, size: int, begins: Int64s | None = None) -> UInt64s:
    """Hash n-grams of words; those of different sizes have different hashes.

    Args:
        words: the hashes of the words, `(words,)`.
        size: words in an n-gram.
        begins: the first word of each; all n-grams in order when None, `(max(0, words - size + 1),)`.
    """
    count = max(0, len(words) - size + 1)
    hashes = np.full(count if begins is None else len(begins), size, np.uint64)
    for place in range(size):
        hashes *= _NGRAM_BASE
        hashes += words[place : place + count] if begins is None else words[begins + place]
    return _mix(hashes)


def _mix(hashes: UInt64s) -> UInt64s:
    hashes ^= hashes >> np.uint64(30)
    hashes *= _MIX
    hashes ^= hashes >> np.uint64(31)
    return hashes
