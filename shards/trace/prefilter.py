"""Filter documents by the ids that can be part of a string. The filter never misses an occurrence.

Wherever a string occurs in a text, each of its bytes lies in some token, and that token's bytes agree with the string
wherever the two overlap. So a document that holds the string holds, for every byte of it, an id that can cover that
byte. Ids are marked with the bytes they can cover, one bit each; a document whose ids together leave a bit unset does
not hold the string and need not be decoded. One look at each token: 2 ns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shards.format.arrays import Bools, Int64s, Tokens, UInt64s

MAX_BITS = 48
"""Only this many leading bytes of a longer string are searched for; a document with the string has them too."""


def cover_bits(text: bytes, table: Sequence[bytes]) -> UInt64s:
    """Filter ids: return which bytes of `text` (its first `MAX_BITS`) each can cover, a bit a byte, uint64 `(ids,)`."""
    text = text[:MAX_BITS]
    size = len(text)
    letters = set(text)
    bits = np.zeros(len(table), np.uint64)
    for token, held in enumerate(table):
        # Most entries share no byte with the text.
        if letters.isdisjoint(held):
            continue
        mask = 0
        for offset in range(1 - len(held), size):  # where in the text the token begins
            low, high = max(offset, 0), min(offset + len(held), size)
            if held[low - offset : high - offset] == text[low:high]:
                mask |= (1 << high) - (1 << low)
        bits[token] = mask
    return bits


def may_hold(
    bits: UInt64s,
    text: bytes,
    tokens: Tokens,
    starts: Int64s,
) -> Bools:
    """Filter documents: return whether each may hold the text, bool `(documents,)`: False is certain, True is not.

    Args:
        bits: from `cover_bits`.
        text: the text they were made for.
        tokens: whole documents one after another.
        starts: the first token of each.
    """
    full = np.uint64((1 << min(len(text), MAX_BITS)) - 1)
    return np.bitwise_or.reduceat(bits[tokens], starts) == full
