"""Find the documents of windows of training tokens; `shards.format.windows.order` says which windows a step has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shards.format.reader import Shard
from shards.format.windows.order import Window, WindowOrder
from shards.trace.locate import Place, find_holders


def find_window_documents(
    shards: Sequence[Shard], order: WindowOrder, first: int, count: int
) -> Iterator[tuple[Window, list[Place]]]:
    """Yield the windows [first, first + count), each with the documents of its tokens, in order.

    Raises:
        ShardSetError: a document table is not what the manifest says.
    """
    for visit, _, starts in order.group_by_visit(np.arange(first, first + count)):
        # A window has one token more than its inputs: the last target.
        ranges = [(start, start + order.seq_len + 1) for start in starts.tolist()]
        holders = find_holders(shards[visit.shard], ranges)
        for (start, stop), places in zip(ranges, holders, strict=True):
            yield Window(visit.epoch, visit.shard, start, stop), places
