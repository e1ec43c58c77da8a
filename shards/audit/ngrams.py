"""Hash n-grams of tokens: equal n-grams have equal hashes in every document and every shard.

An n-gram is hashed as a polynomial of random 64-bit values of its tokens (mod 2^64), built by doubling, then finalized
so that all bits are equally random. Costs about 1 ns per token for each doubling. Two different n-grams have the same
hash once in 2^64, so comparing millions of them gives no chance matches.
"""

import numpy as np

from shards.format.arrays import Int64s, Tokens, UInt64s

NO_NGRAM = np.uint64(2**64 - 1)
"""The hash of a position with too few tokens left in the document for an n-gram."""

_SEED = 0x77696E64
_BASE = 0x9E3779B97F4A7C15
_MIX = np.uint64(0xD6E8FEB86659FD93)  # of the "rrmxmx" family of 64-bit mixers: odd, with well-spread bits


def token_values(vocab_size: int) -> UInt64s:
    """Return a random value for each id, from which n-grams are hashed, uint64 `(vocab_size,)`; always the same."""
    return np.asarray(np.random.PCG64(_SEED).random_raw(vocab_size), np.uint64)


def hash_ngrams(
    tokens: Tokens,
    starts: Int64s,
    ends: Int64s,
    *,
    width: int,
    values: UInt64s,
) -> UInt64s:
    """Hash the n-gram that begins at each token.

    Args:
        tokens: whole documents, `(n,)`.
        starts: their first tokens.
        ends: one past their last, which is EOS and belongs to no n-gram.
        width: tokens in an n-gram, a power of two.
        values: from `token_values`.

    Returns:
        uint64 `(n,)`; `NO_NGRAM` if fewer than `width` tokens of the document are left.
    """
    hashes = np.full(len(tokens), NO_NGRAM, np.uint64)
    if len(tokens) < width:
        return hashes
    rolled = values.take(tokens)
    factor, done = _BASE, 1
    while done < width:
        rolled = rolled[:-done] * np.uint64(factor) + rolled[done:]
        factor, done = factor * factor % 2**64, done * 2
    hashes[: len(rolled)] = finalize(rolled)
    for back in range(1, width + 1):
        # A shorter document has its first token marked several times, which is right: no n-gram begins there.
        hashes[np.maximum(ends - back, starts)] = NO_NGRAM
    return hashes


def finalize(values: UInt64s) -> UInt64s:
    """Finalize hashes of n-grams: spread every bit over all bits of the result, uint64 of one shape; one to one."""
    mixed = values ^ (values >> np.uint64(32))
    mixed *= _MIX
    mixed ^= mixed >> np.uint64(29)
    mixed *= _MIX
    mixed ^= mixed >> np.uint64(32)
    return mixed
