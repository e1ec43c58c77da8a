"""The tokens of a shard in memory, decoded a frame (1 MiB) at a time: those that a window needs first, then the rest.

A first batch then waits for the frames of its own windows, and not for a whole shard. A shard behind a cache is fetched
whole anyway, and is decoded whole, since the cache may remove its file between two reads.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import Any

import numpy as np

from shards.format import codec
from shards.format.arrays import Int64s, Tokens
from shards.format.reader import Shard
from shards.terminal.workers import map_in_threads

MOST_THREADS = 4
"""Threads that decode the frames of one batch: 64 windows of a large shard are in 64 frames, 1.2 ms each."""


class DecodedShard:
    """A shard's tokens, decoded as far as they were needed. Safe to share between threads.

    Two readers that need the same frame at the same time both decode it, to the same bytes.
    """

    def __init__(self, shard: Shard):
        """Reserve room; nothing is read, and no memory is used, before tokens are needed."""
        self._shard = shard
        self._size = shard.dtype.itemsize
        self._tokens = _reserve(0 if shard.cached else shard.num_tokens, shard.dtype)
        self._decoded = np.zeros(-(-shard.num_tokens * self._size // codec.FRAME_BYTES), bool)
        self._wanted = np.zeros_like(self._decoded)
        """Frames that a reader decodes itself: `decode_rest` leaves these out."""
        self._fetching = threading.Lock()
        self.is_whole = shard.num_tokens == 0
        """Whether every token is decoded."""
        self.stopped = threading.Event()
        """Set when the shard is no longer needed: `decode_rest` then ends after its frame."""

    def take(self, starts: Int64s, length: int) -> Tokens:
        """Return the tokens [start, start + length) for each start, `(len(starts), length)`; decode what is missing.

        Raises:
            ShardSetError: the file is not what the manifest says, or a frame is corrupt.
            OSError: the file cannot be read.
        """
        if not self.is_whole:
            if self._shard.cached:
                self._decode_whole()
            else:
                # The frames that hold tokens of the windows, in order.
                first = starts * self._size // codec.FRAME_BYTES
                last = ((starts + length) * self._size - 1) // codec.FRAME_BYTES
                needed = np.zeros_like(self._decoded)
                for step in range(int((last - first).max(initial=-1)) + 1):
                    needed[np.minimum(first + step, last)] = True
                frames = np.flatnonzero(needed)
                self._wanted[frames] = True
                self._decode(frames)
        # One gather over a view of all windows, 6 us for 64 x 513: a matrix of positions takes 43 us, and
        # sliding_window_view 6 us more than as_strided.
        shape = len(self._tokens) - length + 1, length
        return np.lib.stride_tricks.as_strided(self._tokens, shape, (self._size, self._size), writeable=False)[starts]

    def decode_rest(self) -> None:
        """Decode what is not decoded yet, until `stopped` is set. Raises what `take` raises."""
        if self._shard.cached:
            self._decode_whole()
            return
        for group in codec.group_frames(self._shard.frames, self._shard.store.request_bytes):
            if self.stopped.is_set():
                return
            frames = _numbers(group)
            self._decode(frames[~self._wanted[frames]])

    def _decode(self, frames: Int64s) -> None:
        """Decode the missing frames: each thread decodes the frames of one request, or one frame from a disk."""

        def decode(group: codec.Frames) -> None:
            start, stop = group[0].start // self._size, group[-1].stop // self._size
            self._shard.read_into(self._tokens[start:stop], start)
            self._decoded[_numbers(group)] = True

        missing = frames[~self._decoded[frames]]
        runs = np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1) if len(missing) else []
        rows = (self._shard.frames[run[0] : run[-1] + 1] for run in runs)
        groups = [group for row in rows for group in codec.group_frames(row, self._shard.store.request_bytes)]
        map_in_threads(decode, groups, min(MOST_THREADS, os.cpu_count() or 1))
        self.is_whole = bool(self._decoded.all())

    def _decode_whole(self) -> None:
        with self._fetching:  # one thread fetches the shard, the other waits for it
            if not self.is_whole:
                self._tokens = self._shard.read()
                self.is_whole = True


def _reserve(tokens: int, dtype: np.dtype[Any]) -> Tokens:
    """Return an array that takes memory only as it is written, 4 KiB at a time.

    numpy's own asks the system for pages of 2 MiB. If memory is fragmented, it moves others' pages to make them: 52
    frames in a shard of 191 then took 90 to 340 ms of system time, and 30 to 55 this way.
    """
    if not tokens:
        return np.empty(0, dtype)
    room = mmap.mmap(-1, tokens * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(room, dtype)


def _numbers(frames: codec.Frames) -> Int64s:
    """Return the numbers of frames in a row."""
    return np.arange(frames[0].start // codec.FRAME_BYTES, frames[-1].start // codec.FRAME_BYTES + 1)
