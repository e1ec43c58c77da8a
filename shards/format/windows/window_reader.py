"""Read windows by their numbers in the order that `shards.format.windows.order` gives, as arrays of token ids.

Any numbers in any order; forward through the order is fast: then the shard in use, and after it the next one, are
decoded whole by a thread. At most two decoded shards are held (2 or 4 bytes per token). Until a shard is decoded, and
for windows far apart, as a random sampler asks for, each window is read by itself, which costs a frame, about a
millisecond. A set of two shards or less is decoded whole for any order. A shard behind a cache is fetched whole anyway,
and is always decoded whole, since the cache may remove its file between two reads.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from shards.errors import set_error
from shards.format.arrays import Float64s, Int64s, Tokens
from shards.format.document_table import read_sources
from shards.format.reader import Shard
from shards.format.windows.order import Visit, WindowOrder
from shards.stores.cache_store import CacheStore
from shards.stores.store import reads_at_once
from shards.terminal.workers import map_in_threads

READS_FORWARD = 4
"""Reads that went forward, one after another, before shards are decoded ahead. Random reads seldom do that: in a set of
ten shards once in 8,000 times four."""
MOST_THREADS = 4
"""Threads that read the windows of one batch: 64 windows of a large shard are in 64 frames, 1.2 ms each."""
DECODED_SHARDS = 2
"""Shards held decoded: the one in use and the next."""


class WindowReader(AbstractContextManager["WindowReader"]):
    """Reads windows by number. Safe to share between threads, which take turns; not between processes."""

    def __init__(self, shards: Sequence[Shard], order: WindowOrder, *, vocab_size: int, stop: int | None = None):
        """Prepare to read; nothing is read yet.

        Args:
            shards: the split's shards, in the order whose token counts `order` was made from.
            order: the order of windows.
            vocab_size: that of the set; an id from there on is no token.
            stop: one past the last window that will be read; no shard is decoded ahead for later ones.
        """
        self.order = order
        self._shards, self._vocab_size, self._stop = shards, vocab_size, stop
        self._held: OrderedDict[int, tuple[Future[Tokens], threading.Event]] = OrderedDict()
        """The shards that are decoded, or will be, and what stops their decoding; the one used last is the last."""
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="decode-ahead")
        self._last: tuple[Visit, int] | None = None
        self._forward = 0

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the decoding thread and what it fetches, and free the shards."""
        # Stop what waits, then what runs, then what fetches; and wait for it.
        self._pool.shutdown(wait=False, cancel_futures=True)
        for _, stopped in self._held.values():
            stopped.set()
        for shard in self._shards[:1]:
            if isinstance(shard.store, CacheStore):
                shard.store.stop_fetching()
        self._pool.shutdown()
        self._held.clear()

    def read(self, windows: Int64s) -> Tokens:
        """Return windows by their numbers, uint16 or uint32 `(len(windows), seq_len + 1)`.

        Raises:
            ShardSetError: a shard's file is corrupt, or holds an id outside the vocabulary.
            OSError: a shard cannot be read.
        """
        out = np.empty((len(windows), self.order.seq_len + 1), self._shards[0].dtype)
        with self._lock:
            for visit, rows, starts in self.order.group_by_visit(windows):
                out[rows] = taken = self._take(visit.shard, starts, out.shape[1])
                if (largest := int(taken.max())) >= self._vocab_size:
                    found = f"holds the id {largest}; expected less than {self._vocab_size}. Validate the set."
                    raise set_error("token_out_of_range", self._shards[visit.shard].name, found)
                self._note_read(visit, int(windows[rows[0]]), int(windows[rows[-1]]))
        return out

    def _take(self, index: int, starts: Int64s, length: int) -> Tokens:
        """Return the tokens [start, start + length) of a shard for each start, `(len(starts), length)`."""
        shard = self._shards[index]
        if shard.cached:
            self._hold(index)
        if index in self._held and (shard.cached or self._held[index][0].done()):
            try:
                tokens = self._held[index][0].result()
            except BaseException:
                del self._held[index]  # it is decoded again when it is needed again
                raise
            # One gather over a view of all windows, 6 us for 64 x 513: a matrix of positions takes 43 us, and
            # sliding_window_view 6 us more than as_strided.
            shape, size = (len(tokens) - length + 1, length), tokens.itemsize
            return np.lib.stride_tricks.as_strided(tokens, shape, (size, size), writeable=False)[starts]
        threads = min(MOST_THREADS, os.cpu_count() or 1)
        parts = map_in_threads(lambda start: shard.read(start, start + length), starts.tolist(), threads)
        return np.stack(list(parts))

    def _hold(self, index: int) -> None:
        """Let the thread decode a shard, unless it does or did; free those that were used longest ago."""
        if index not in self._held:
            while len(self._held) >= DECODED_SHARDS:
                future, stopped = self._held.popitem(last=False)[1]
                future.cancel()
                stopped.set()
            stopped = threading.Event()
            self._held[index] = self._pool.submit(_decode, self._shards[index], stopped), stopped
        self._held.move_to_end(index)

    def _note_read(self, visit: Visit, first: int, last: int) -> None:
        """Decode this shard, and the next one ahead, if the reads go forward or there are no others."""
        # Forward is: further in this visit, or in the one that follows it.
        before, self._last = self._last, (visit, last)
        following = visit.first + visit.windows
        if before is not None:
            after = before[0].first + before[0].windows
            forward = first > before[1] and visit.first in (before[0].first, after)
            self._forward = self._forward + 1 if forward else 0
        if self._forward < READS_FORWARD and len(self._shards) > DECODED_SHARDS:
            return
        self._hold(visit.shard)
        if self._stop is None or following < self._stop:
            self._hold(self.order.visit(following).shard)
            self._held.move_to_end(visit.shard)  # of the two, this one is in use


def _decode(shard: Shard, stopped: threading.Event) -> Tokens:
    """Return a shard's tokens; those so far if nobody needs them any more.

    Raises:
        ShardSetError: the file is not what the manifest says, or a frame is corrupt.
        OSError: the file cannot be read.
    """
    if shard.cached:
        return shard.read()
    tokens, done = np.empty(shard.num_tokens, shard.dtype), 0
    for part in shard.iter_tokens():
        if stopped.is_set():
            break
        tokens[done : done + len(part)] = part
        done += len(part)
    return tokens


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

    threads = reads_at_once(shards[visited[0]].store) if visited else 1
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
