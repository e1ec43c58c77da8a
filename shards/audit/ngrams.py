"""Hashes of windows of tokens: equal windows have equal hashes wherever they stand, in any shard and any document.

A window of a power of two of tokens is hashed as a polynomial of random 64-bit values of its tokens (mod 2^64), built
by doubling, then mixed so that every bit is as good as another. Costs about 1 ns a token for each doubling. Two
different windows have the same hash once in 2^64, so that the sets compared here (millions) hold no chance matches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

NO_WINDOW = np.uint64(2**64 - 1)
"""Stands where no window of the document begins."""

_SEED = 0x77696E64
_BASE = 0x9E3779B97F4A7C15
_MIX = np.uint64(0xD6E8FEB86659FD93)  # of the "rrmxmx" family of 64-bit mixers: odd, with well-spread bits


def token_values(vocab_size: int) -> npt.NDArray[np.uint64]:
    """Return a random value for each id, uint64 `(vocab_size,)`; always the same ones."""
    return np.asarray(np.random.PCG64(_SEED).random_raw(vocab_size), np.uint64)


def hash_windows(
    tokens: npt.NDArray[np.unsignedinteger],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    *,
    width: int,
    values: npt.NDArray[np.uint64],
) -> npt.NDArray[np.uint64]:
    """Hash the window that begins at each token.

    Args:
        tokens: whole documents, `(n,)`.
        starts: their first tokens.
        ends: one past their last, which is EOS and belongs to no window.
        width: tokens in a window, a power of two.
        values: from `token_values`.

    Returns:
        uint64 `(n,)`; `NO_WINDOW` where fewer than `width` tokens of the document are left.
    """
    hashes = np.full(len(tokens), NO_WINDOW, np.uint64)
    if len(tokens) < width:
        return hashes
    rolled = values[tokens]
    factor, done = _BASE, 1
    while done < width:
        rolled = rolled[:-done] * np.uint64(factor) + rolled[done:]
        factor, done = factor * factor % 2**64, done * 2
    hashes[: len(rolled)] = mix(rolled)
    for back in range(1, width + 1):
        # Of a document shorter than that the first token is marked again, where no window begins either.
        hashes[np.maximum(ends - back, starts)] = NO_WINDOW
    return hashes


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread every bit of each value over all bits of the result, uint64 of the same shape; one to one."""
    mixed = values ^ (values >> np.uint64(32))
    mixed *= _MIX
    mixed ^= mixed >> np.uint64(29)
    mixed *= _MIX
    mixed ^= mixed >> np.uint64(32)
    return mixed
