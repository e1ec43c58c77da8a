"""The account of a training run's tokens by source: used, used again, and left out of each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shards.format.arrays import Float64s, Int64s
from shards.format.document_table import read_sources
from shards.format.reader import Shard
from shards.format.windows.order import WindowOrder
from shards.terminal.workers import map_in_threads

TABLES_AT_ONCE = 8
"""Document tables that are read at once from a remote store, since each of them waits for an answer or two."""


def account_tokens(shards: Sequence[Shard], names: list[str], order: WindowOrder, windows: int) -> dict[str, Any]:
    """Count the tokens that the first windows of an order predict, predict again and never predict, by source.

    Reads the document table of every shard that was visited.

    Returns:
        `tokens_used` (targets, repetitions included), `tokens_repeated` (those that were targets before),
        `tokens_cropped_per_epoch`, and `tokens_by_source` {name: {used, repeated}}.
    """
    epochs, rest = divmod(windows, order.per_epoch)
    numbers = np.arange(rest) + epochs * order.per_epoch
    last = {visit.shard: starts for visit, _, starts in order.group_by_visit(numbers)}
    visited = [index for index in range(len(shards)) if order.windows[index] and (epochs or index in last)]

    def count(index: int) -> Int64s:
        """Return by source the targets of a shard in all epochs, and without repetition, int64 `(sources, 2)`."""
        lengths, sources = read_sources(shards[index], names)
        # A whole epoch's targets are one range, which begins after the first token of its first window.
        begins = np.array(order.find_offsets(index, range(epochs)), np.int64) + 1
        ends = begins + int(order.windows[index]) * order.seq_len
        own = last.get(index, np.empty(0, np.int64)) + 1
        edges = np.array([own, own + order.seq_len])
        used = np.concatenate(([begins, ends], edges), axis=1)
        # Those ranges overlap, so together they are one; a window of the last epoch may reach over its edges.
        low, high = (begins.min(), ends.max()) if epochs else (0, 0)
        once = np.concatenate(([[low], [high]], np.minimum(edges, low), np.maximum(edges, high)), axis=1)

        counts = np.zeros((len(names), 2), np.int64)
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        for source in range(len(names)):
            # Between the ends of two documents the count grows by 1 or 0 for each token, so interpolation is exact.
            counted = np.concatenate(([0], np.cumsum(lengths * (sources == source))))
            for column, ranges in enumerate((used, once)):
                before: Float64s = np.interp(ranges, bounds, counted)
                counts[source, column] = np.rint(np.diff(before, axis=0)).sum()
        return counts

    threads = TABLES_AT_ONCE if visited and shards[visited[0]].store.folder is None else 1
    totals = sum(map_in_threads(count, visited, threads), start=np.zeros((len(names), 2), np.int64))
    return {
        "tokens_used": windows * order.seq_len,
        "tokens_repeated": windows * order.seq_len - int(totals[:, 1].sum()),
        "tokens_cropped_per_epoch": order.cropped,
        "tokens_by_source": {
            name: {"used": used, "repeated": used - once}
            for name, (used, once) in zip(names, totals.tolist(), strict=True)
        },
    }
