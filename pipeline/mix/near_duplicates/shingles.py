"""Shingles: the 5-grams of a document's tokens, as 64-bit hashes. Two documents are compared by their sets of them.

EOS is in no shingle. A document with fewer than five tokens has one: all its tokens. Equal shingles have equal hashes;
two different ones of a pair of documents have the same hash about once in 2^64 / (shingles of one x of the other): for
documents of 100,000 tokens, once in two billion pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shards.audit.ngrams import NO_NGRAM, finalize, hash_ngrams

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Int64s, UInt64s, UIntegers

WIDTH = 5
"""Tokens in a shingle, as the words in FineWeb's (Penedo et al. 2024, section 3.4)."""

_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)
"""One for each place of a short document: odd, with well-spread bits."""


def hash_shingles(tokens: UIntegers, lengths: Int64s, values: UInt64s) -> tuple[UInt64s, Int64s]:
    """Hash the shingles of documents, repeated ones included.

    Args:
        tokens: whole documents, each with its EOS, one after the other.
        lengths: tokens of each, EOS included, `(documents,)`.
        values: a random number for each id, from `shards.audit.ngrams.token_values`.

    Returns:
        The hashes of the first document's shingles, the second's and so on, uint64 `(shingles,)`; and how many each
        document has, at least one, `(documents,)`.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    hashes = hash_ngrams(tokens, starts, ends, width=WIDTH, values=values)
    # Documents too short for a shingle are one as a whole.
    short = np.flatnonzero(lengths <= WIDTH)
    if len(short):
        hashes[starts[short]] = _hash_short(tokens, starts[short], lengths[short], values)
    return hashes[hashes != NO_NGRAM], np.maximum(lengths - WIDTH, 1)


def _hash_short(
    tokens: UIntegers,
    starts: Int64s,
    lengths: Int64s,
    values: UInt64s,
) -> UInt64s:
    """Hash documents of fewer than `WIDTH` tokens whole, `(documents,)`."""
    places = np.arange(WIDTH - 1)
    ids = tokens[np.minimum(starts[:, None] + places, len(tokens) - 1)]
    inside = np.where(places < lengths[:, None] - 1, values[ids], np.uint64(0))
    return finalize((inside * _FACTORS).sum(axis=1, dtype=np.uint64))
