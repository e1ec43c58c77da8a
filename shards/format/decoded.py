"""The tokens of a shard in memory, decoded a frame (1 MiB) at a time: those that a window needs first, then the rest.

A first batch then waits for the frames of its own windows, and not for a whole shard. A shard behind a cache is fetched
whole anyway, and is decoded whole, since the cache may remove its file between two reads.
"""

from __future__ import annotations

import os
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from shards.format import codec
from shards.workers import map_in_threads

if TYPE_CHECKING:
    import numpy.typing as npt

    from shards.format.reader import Shard

MOST_THREADS = 4
"""Threads that decode the frames of one batch: 64 windows of a large shard lie in 64 frames, 1.2 ms each."""


class DecodedShard:
    """A shard's tokens, decoded where they were needed. Safe to share between threads: what two decode is equal."""

    def __init__(self, shard: Shard):
        """Reserve room; nothing is read, and no memory is used, before tokens are needed."""
        self._shard = shard
        self._size = shard.dtype.itemsize
        self._frames = -(-shard.num_tokens * self._size // codec.FRAME_BYTES)
        self._tokens: npt.NDArray[np.unsignedinteger] = np.empty(0 if shard.cached else shard.num_tokens, shard.dtype)
        self._decoded = np.zeros(self._frames, dtype=bool)
        self._lock = threading.Lock()
        self.stopped = threading.Event()
        """Set when the shard is no longer needed: `decode_rest` then ends after its frame."""

    @property
    def is_whole(self) -> bool:
        """Whether every token is decoded."""
        return bool(self._decoded.all())

    def take(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.unsignedinteger]:
        """Return the tokens [start, start + length) for each start, `(len(starts), length)`; decode what is missing.

        Raises:
            ShardSetError: the file is not what the manifest says, or a frame is corrupt.
            OSError: the file cannot be read.
        """
        if not self.is_whole:
            if self._shard.cached:
                self._decode_whole()
            else:
                self._decode(self._missing(starts, length))
        # One gather over a view of all windows: 7 us for 64 x 513; a matrix of positions takes 43 us.
        return np.lib.stride_tricks.sliding_window_view(self._tokens, length)[starts]

    def decode_rest(self) -> None:
        """Decode what is not decoded yet, until `stopped` is set. Raises what `take` raises."""
        if self._shard.cached:
            self._decode_whole()
            return
        table, most = self._shard.seek_table, max(self._shard.store.request_bytes, 1)
        while not self.stopped.is_set() and not self.is_whole:
            # As many frames as one request brings: one from a disk.
            first = int(np.argmin(self._decoded))
            last = first + 1
            while last < self._frames and not self._decoded[last]:
                if table.frames[last].file_stop - table.frames[first].file_start > most:
                    break
                last += 1
            self._decode([(first, last)])

    def _missing(self, starts: npt.NDArray[np.int64], length: int) -> list[tuple[int, int]]:
        """Return the runs [first, last) of frames that hold tokens of the windows and are not decoded."""
        first, last = (
            starts * self._size // codec.FRAME_BYTES,
            ((starts + length) * self._size - 1) // codec.FRAME_BYTES,
        )
        needed = np.zeros(self._frames, dtype=bool)
        for step in range(int((last - first).max()) + 1):
            needed[np.minimum(first + step, last)] = True
        frames = np.flatnonzero(needed & ~self._decoded)
        cuts = [0, *(np.flatnonzero(np.diff(frames) > 1) + 1).tolist(), len(frames)]
        return [(int(frames[start]), int(frames[stop - 1]) + 1) for start, stop in pairwise(cuts) if start < stop]

    def _decode(self, runs: list[tuple[int, int]]) -> None:
        """Decode runs of frames, several at once."""

        def decode(run: tuple[int, int]) -> None:
            start, stop = (min(frame * codec.FRAME_BYTES // self._size, self._shard.num_tokens) for frame in run)
            self._shard.read_into(self._tokens[start:stop], start)
            self._decoded[run[0] : run[1]] = True

        map_in_threads(decode, runs, min(MOST_THREADS, os.cpu_count() or 1))

    def _decode_whole(self) -> None:
        with self._lock:  # one thread fetches the shard, the other waits for it
            if not self.is_whole:
                self._tokens = self._shard.read()
                self._decoded[:] = True
