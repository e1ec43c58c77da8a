"""The loader: windows of the compressed shards as tensors, in the order that `shards.format.order` gives.

`Loader` turns window numbers into tensors; it holds at most two decoded shards (2 or 4 bytes a token): the one being
read, and the next, decoded ahead in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view

from shards import Shard
from shards.format.order import Visit, WindowOrder

Tokens = npt.NDArray[np.unsignedinteger]


class Loader(AbstractContextManager["Loader"]):
    """Reads windows by number. Reading them in order is fast: the next shard is decoded meanwhile.

    Use as a context manager, or `close` it. Not for use from several threads.
    """

    def __init__(self, shards: Sequence[Shard], order: WindowOrder, *, stop: int | None = None):
        """Start a loader; nothing is read yet.

        Args:
            shards: the split's shards, in the order whose token counts `order` was made from.
            order: the order of windows.
            stop: one past the last window that will be read; no shard is decoded ahead for later ones.
        """
        self._shards, self._order, self._stop = shards, order, stop
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="decode-ahead")
        self._current: tuple[int, Tokens] | None = None
        self._ahead: tuple[int, Future[Tokens]] | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the decoding thread and free the shards."""
        self._pool.shutdown(cancel_futures=True)
        self._current = self._ahead = None

    def read(self, first: int, count: int) -> torch.Tensor:
        """Return the windows [first, first + count), which may be in several shards and epochs.

        Returns:
            windows: int64 `(count, seq_len + 1)`; inputs are `[:, :-1]`, targets `[:, 1:]`.

        Raises:
            ShardSetError: a shard's file is corrupt, also if the decoding thread has found it.
            OSError: a shard cannot be read.
        """
        out = torch.empty((count, self._order.seq_len + 1), dtype=torch.int64)
        rows, row = out.numpy(), 0
        for visit, starts in self._order.iter_visits(first, count):
            windows = sliding_window_view(self._tokens(visit), self._order.seq_len + 1)
            # One gather per run over a view of all windows: 7 us for 64 x 513; a matrix of positions takes 43 us.
            rows[row : row + len(starts)] = windows[starts]
            row += len(starts)
        return out

    def _tokens(self, visit: Visit) -> Tokens:
        if self._current is None or self._current[0] != visit.shard:
            self._current = None  # Free it before another is decoded: at most two shards are in memory.
            ahead, self._ahead = self._ahead, None
            if ahead is None or ahead[0] != visit.shard:
                if ahead is not None:
                    ahead[1].cancel()  # The caller has jumped to another shard.
                ahead = self._decode(visit.shard)
            self._current = visit.shard, ahead[1].result()
        following = visit.first + visit.windows
        if self._ahead is None and (self._stop is None or following < self._stop):
            shard = self._order.visit(following).shard
            if shard != visit.shard:
                self._ahead = self._decode(shard)
        return self._current[1]

    def _decode(self, shard: int) -> tuple[int, Future[Tokens]]:
        return shard, self._pool.submit(self._shards[shard].read)
