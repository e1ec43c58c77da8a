"""Tokens that differ from their neighbours, for sets of `shards.format.token_set`."""

from __future__ import annotations

import numpy as np

from shards.format.manifest import dtype_for

EOS_ID = 0


def count_up(tokens: int, *, vocab_size: int = 65_536, document_tokens: int = 50, first: int = 0) -> np.ndarray:
    """Return tokens that differ from their neighbours, as documents of one length, the last one perhaps shorter."""
    ids = (np.arange(first, first + tokens) % (vocab_size - 1) + 1).astype(dtype_for(vocab_size))
    ids[document_tokens - 1 :: document_tokens] = EOS_ID
    ids[-1] = EOS_ID
    return ids
