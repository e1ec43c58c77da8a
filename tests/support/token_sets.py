"""Tokens that differ from their neighbours, for sets of `shards.format.writer`."""

import numpy as np

from shards.format.manifest import dtype_for
from shards.format.windows.order import Window, WindowOrder

EOS_ID = 0


def count_up(tokens: int, *, vocab_size: int = 65_536, document_tokens: int = 50, first: int = 0) -> np.ndarray:
    """Return tokens that differ from their neighbours, as documents of one length, the last one perhaps shorter."""
    ids = (np.arange(first, first + tokens) % (vocab_size - 1) + 1).astype(dtype_for(vocab_size))
    ids[document_tokens - 1 :: document_tokens] = EOS_ID
    ids[-1] = EOS_ID
    return ids


def locate(order: WindowOrder, number: int) -> Window:
    """Return the place of the window of a number."""
    ((visit, _, starts),) = order.group_by_visit(np.array([number]))
    return Window(visit.epoch, visit.shard, int(starts[0]), int(starts[0]) + order.seq_len + 1)
