"""Read windows by their numbers in the order that `shards.format.windows.order` gives, as arrays of token ids.

Any numbers in any order; forward through the order is fast: then the rest of the shard in use, and after it the next
shard, are decoded in a thread meanwhile. At most two decoded shards are held (2 or 4 bytes per token) unless the caller
allows more. Windows far apart, as a random sampler asks for, cost a frame each, about a millisecond.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import numpy as np

from shards.format.arrays import Int64s, Tokens
from shards.format.reader import Shard
from shards.format.windows.decoded_frames import DecodedShard
from shards.format.windows.order import Visit, WindowOrder
from shards.stores.cache_store import CacheStore

READS_FORWARD = 4
"""Reads that went forward, one after another, before shards are decoded ahead. Random reads seldom do that: in a set of
ten shards once in 8,000 times four."""


class WindowReader(AbstractContextManager["WindowReader"]):
    """Reads windows by number. Safe to share between threads, which take turns; not between processes."""

    def __init__(
        self, shards: Sequence[Shard], order: WindowOrder, *, stop: int | None = None, decoded_shards: int = 2
    ):
        """Prepare to read; nothing is read yet.

        Args:
            shards: the split's shards, in the order whose token counts `order` was made from.
            order: the order of windows.
            stop: one past the last window that will be read; no shard is decoded ahead for later ones.
            decoded_shards: shards held decoded, at least 2: the one in use and the next.
        """
        self.order = order
        self._shards, self._stop, self._most = shards, stop, decoded_shards
        self._held: OrderedDict[int, DecodedShard] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="decode-ahead")
        self._ahead: dict[int, Future[None]] = {}
        self._last: tuple[Visit, int] | None = None
        self._forward = 0

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the decoding thread and what it fetches, and free the shards."""
        # Stop what waits, then what runs, then what fetches; and wait for it.
        self._pool.shutdown(wait=False, cancel_futures=True)
        for shard in self._held.values():
            shard.stopped.set()
        for shard in self._shards[:1]:
            if isinstance(shard.store, CacheStore):
                shard.store.stop_fetching()
        self._pool.shutdown()
        self._held.clear()
        self._ahead.clear()

    def read(self, windows: Int64s) -> Tokens:
        """Return windows by their numbers, uint16 or uint32 `(len(windows), seq_len + 1)`.

        Raises:
            ShardSetError: a shard's file is corrupt.
            OSError: a shard cannot be read.
        """
        length = self.order.seq_len + 1
        out = np.empty((len(windows), length), self._shards[0].dtype)
        with self._lock:
            for visit, rows, starts in self.order.group_by_visit(windows):
                out[rows] = self._take(visit, starts, length)
                self._note_read(visit, int(windows[rows[0]]), int(windows[rows[-1]]))
        return out

    def _take(self, visit: Visit, starts: Int64s, length: int) -> Tokens:
        # A shard that is decoded ahead may be whole by now, or have failed.
        shard = self._hold(visit.shard)
        ahead = self._ahead.get(visit.shard)
        if ahead is not None and (ahead.done() or self._shards[visit.shard].cached):
            del self._ahead[visit.shard]
            ahead.result()  # a shard behind a cache is there whole or not at all; raises what the thread has found
        return shard.take(starts, length)

    def _hold(self, index: int) -> DecodedShard:
        """Return a shard's tokens; free those that were used longest ago."""
        if index in self._held:
            self._held.move_to_end(index)
            return self._held[index]
        while len(self._held) >= self._most:
            oldest, shard = self._held.popitem(last=False)
            shard.stopped.set()
            if (ahead := self._ahead.pop(oldest, None)) is not None:
                ahead.cancel()
        self._held[index] = DecodedShard(self._shards[index])
        return self._held[index]

    def _note_read(self, visit: Visit, first: int, last: int) -> None:
        """Decode the rest of this shard and the next one ahead if the reads go forward."""
        # Forward is: further in this visit, or in the one that follows it.
        before, self._last = self._last, (visit, last)
        if before is not None:
            following = before[0].first + before[0].windows
            forward = first > before[1] and visit.first in (before[0].first, following)
            self._forward = self._forward + 1 if forward else 0
        if self._forward < READS_FORWARD:
            return
        self._decode_ahead(visit.shard)
        following = visit.first + visit.windows
        if self._stop is None or following < self._stop:
            shard = self.order.visit(following).shard
            if shard != visit.shard:
                self._decode_ahead(shard)
                self._held.move_to_end(visit.shard)  # of the two, this one is in use

    def _decode_ahead(self, index: int) -> None:
        shard = self._hold(index)
        if index not in self._ahead and not shard.is_whole:
            self._ahead[index] = self._pool.submit(shard.decode_rest)
