"""Read windows, or packed rows, by their numbers in the order of `shards.format.windows`, as arrays of token ids.

Any numbers in any order; forward through the order is fast: then the rest of the shard in use, and after it the next
shard, are decoded in a thread meanwhile. At most two decoded shards are held (2 or 4 bytes per token). A shard is
decoded a frame (1 MiB) at a time, first those that a window needs: a first batch waits for the frames of its own
windows alone. Windows far apart, as a random sampler asks for, cost a frame each, about a millisecond; a packed row
costs one for each document. A shard behind a cache is fetched whole anyway, and is decoded whole, since the cache may
remove its file between two reads.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from shards.format import codec
from shards.format.arrays import Float64s, Int64s, Tokens, find_bounds
from shards.format.chat import NO_TARGET, find_targets
from shards.format.document_table import read_sources
from shards.format.manifest import MANIFEST_FILE
from shards.format.reader import ShardSet
from shards.format.shard import Shard
from shards.format.windows.order import Pieces, Visit, WindowOrder
from shards.format.windows.packed import RowOrder, join_ranges
from shards.stores.cache_store import CacheStore
from shards.stores.files import hold_file
from shards.stores.store import reads_at_once
from shards.terminal.workers import map_in_threads

READS_FORWARD = 4
"""Reads that went forward, one after another, before shards are decoded ahead. Random reads seldom do that: in a set of
ten shards once in 8,000 times four."""
MOST_THREADS = 4
"""Threads that decode the frames of one batch: 64 windows of a large shard are in 64 frames, 1.2 ms each."""


DECODED_SHARDS = 2
"""Shards held decoded: the one in use and the next."""


class WindowReader:
    """Reads windows by number. Safe to share between threads, which take turns; not between processes."""

    def __init__(self, shards: Sequence[Shard], order: WindowOrder, *, stop: int):
        """Prepare to read windows; nothing is read yet.

        Args:
            shards: the split's shards, in the order whose token counts `order` was made from.
            order: the order of windows.
            stop: one past the last window that will be read; no shard is decoded ahead for later ones.
        """
        self.order = order
        self._shards, self._stop = shards, stop
        self._held: OrderedDict[int, _DecodedShard] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="decode-ahead")
        self._last: tuple[Visit, int] | None = None
        self._forward = 0
        self._to_hold = shards[0].store.folder if shards else None

    def close(self) -> None:
        """Stop the decoding thread of the windows' reader and what it fetches, and free the shards."""
        # Stop what waits, then what runs, then what fetches; and wait for it.
        self._pool.shutdown(wait=False, cancel_futures=True)
        for shard in self._held.values():
            shard.stop()
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
        length = self.order.seq_len + 1
        out = np.empty((len(windows), length), self._shards[0].dtype)
        with self._lock:
            for visit, rows, starts in self._group(windows):
                out[rows] = self._hold(visit.shard).take(starts, length)
                self._note_read(visit, int(windows[rows[0]]), int(windows[rows[-1]]))
        return out

    def read_rows(self, numbers: Int64s, order: RowOrder) -> tuple[Int64s, Int64s, Int64s]:
        """Return packed rows by their numbers; `order` is the reader's.

        Returns:
            ids: what is fed, int64 `(rows, seq_len)`; EOS in the padding.
            labels: the token after each id in its document; `NO_TARGET` where that is no target.
            documents: the document of each slot, numbered from 0 in each row; the padding is one more.

        Raises:
            ShardSetError: as `read`; or a document does not end where its table says.
            OSError: a shard cannot be read.
        """
        shape, eos_id = (len(numbers), order.seq_len), order.manifest.tokenizer.eos_id
        ids, labels, documents = np.full(shape, eos_id), np.full(shape, NO_TARGET), np.zeros(shape, np.int64)
        with self._lock:
            for visit, rows, places in self._group(numbers):
                pieces, shard = order.find_pieces(visit, places), self._hold(visit.shard)
                fed, told = (shard.gather(pieces.starts + shift, pieces.slots) for shift in (0, 1))
                where = rows[pieces.rows] * order.seq_len + pieces.at
                slots = join_ranges(where, pieces.slots)
                ids.reshape(-1)[slots] = fed
                ids.reshape(-1)[where[pieces.starts < 0]] = eos_id
                labels.reshape(-1)[slots] = _label(self._shards[visit.shard], order, pieces, told)
                counts = np.bincount(pieces.rows)
                documents[rows] = counts[:, None]
                documents.reshape(-1)[slots] = np.repeat(join_ranges(0 * counts, counts), pieces.slots)
                self._note_read(visit, int(numbers[rows[0]]), int(numbers[rows[-1]]))
        return ids, labels, documents

    def _group(self, numbers: Int64s) -> Iterator[tuple[Visit, Int64s, Int64s]]:
        """Yield windows visit by visit, as the order does; first keep the set as it is."""
        if self._to_hold is not None:  # no build on this machine replaces the set while this reader lives
            hold_file(self._to_hold / MANIFEST_FILE, self)
            self._to_hold = None
        return self.order.group_by_visit(numbers)

    def _hold(self, index: int) -> _DecodedShard:
        """Return the tokens of a shard that windows are read from; free those that were used longest ago."""
        if index in self._held:
            self._held.move_to_end(index)
            return self._held[index]
        while len(self._held) >= DECODED_SHARDS:
            self._held.popitem(last=False)[1].stop()
        self._held[index] = _DecodedShard(self._shards[index])
        return self._held[index]

    def _note_read(self, visit: Visit, first: int, last: int) -> None:
        """Decode the rest of this shard and the next one ahead if the reads of windows go forward."""
        # Forward is: further in this visit, or in the one that follows it.
        before, self._last = self._last, (visit, last)
        if before is not None:
            following = before[0].first + before[0].windows
            forward = first > before[1] and visit.first in (before[0].first, following)
            self._forward = self._forward + 1 if forward else 0
        if self._forward < READS_FORWARD:
            return
        self._hold(visit.shard).decode_ahead(self._pool)
        following = visit.first + visit.windows
        if following < self._stop:
            self._hold(self.order.visit(following).shard).decode_ahead(self._pool)
            self._held.move_to_end(visit.shard)  # of the two, this one is in use


class _DecodedShard:
    """A shard's tokens, decoded as far as they were needed: by the reader, which takes turns, and its thread.

    If both need the same frame at the same time, both decode it, to the same bytes.
    """

    def __init__(self, shard: Shard):
        """Reserve room for a shard of windows; no memory is used before tokens are needed."""
        self._shard = shard
        self._size = shard.dtype.itemsize
        self._tokens = _reserve(shard.num_tokens, shard.dtype)
        self._decoded = np.zeros(-(-shard.num_tokens * self._size // codec.FRAME_BYTES), bool)
        self._ahead: Future[None] | None = None
        self._stopped = threading.Event()

    def take(self, starts: Int64s, length: int) -> Tokens:
        """Return windows' tokens [start, start + length) of each start, `(len(starts), length)`; decode the missing.

        Raises:
            ShardSetError: the file is not what the manifest says, or a frame is corrupt.
            OSError: the file cannot be read.
        """
        self._prepare(starts, starts + length)
        # One gather over a view of all windows, 6 us for 64 x 513: a matrix of positions takes 43 us, and
        # sliding_window_view 6 us more than as_strided.
        shape = len(self._tokens) - length + 1, length
        return np.lib.stride_tricks.as_strided(self._tokens, shape, (self._size, self._size), writeable=False)[starts]

    def gather(self, starts: Int64s, lengths: Int64s) -> Tokens:
        """Return the tokens of pieces one after the other; before the shard's first, the first. Raises as `take`."""
        self._prepare(np.maximum(starts, 0), starts + lengths)
        return self._tokens[np.maximum(join_ranges(starts, lengths), 0)]

    def _prepare(self, starts: Int64s, stops: Int64s) -> None:
        """Decode what is missing of the windows' tokens [start, stop)."""
        # What is decoded ahead may be whole by now, or have failed; behind a cache it is whole or not there at all.
        ahead = self._ahead
        if ahead is not None and (ahead.done() or self._shard.cached):
            self._ahead = None
            ahead.result()
        if not self._decoded.all():
            # The frames that hold tokens of the windows, in order.
            first = starts * self._size // codec.FRAME_BYTES
            last = (stops * self._size - 1) // codec.FRAME_BYTES
            needed = np.zeros_like(self._decoded)
            for step in range(int((last - first).max(initial=-1)) + 1):
                needed[np.minimum(first + step, last)] = True
            missing = np.flatnonzero((needed | self._shard.cached) & ~self._decoded)
            runs = np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1) if len(missing) else []
            groups = [group for run in runs for group in self._group(range(run[0], run[-1] + 1))]
            map_in_threads(self._decode, groups, min(MOST_THREADS, os.cpu_count() or 1))

    def decode_ahead(self, pool: ThreadPoolExecutor) -> None:
        """Let a thread decode for later windows what is missing, once; what it raises, the next `take` raises."""
        if self._ahead is None and not self._decoded.all():
            self._ahead = pool.submit(self._decode_rest)

    def stop(self) -> None:
        """Let the thread end after its frame: no more windows need the shard."""
        self._stopped.set()
        if self._ahead is not None:
            self._ahead.cancel()

    def _decode_rest(self) -> None:
        for group in self._group(range(len(self._decoded))):
            if self._stopped.is_set():
                return
            self._decode(group)

    def _group(self, frames: range) -> Iterable[range]:
        """Return the frames of windows in groups to decode at once: those of one request, or one frame from a disk."""
        if self._shard.cached:
            return [range(len(self._decoded))]
        return codec.group_frames(self._shard.frames, frames, self._shard.store.request_bytes)

    def _decode(self, frames: range) -> None:
        """Decode consecutive frames of windows, unless they are decoded."""
        if not self._decoded[frames.start : frames.stop].all():
            start, stop = (number * codec.FRAME_BYTES // self._size for number in (frames.start, frames.stop))
            self._shard.read_into(self._tokens[start:stop], start)
            self._decoded[frames.start : frames.stop] = True


def _reserve(tokens: int, dtype: np.dtype[Any]) -> Tokens:
    """Return an array for the tokens of windows that takes memory only as it is written, 4 KiB at a time.

    numpy's own asks the system for pages of 2 MiB. If memory is fragmented, it moves others' pages to make them: 52
    frames in a shard of 191 then took 90 to 340 ms of system time, and 30 to 55 this way.
    """
    room = mmap.mmap(-1, tokens * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(room, dtype)


def _label(shard: Shard, order: RowOrder, pieces: Pieces, told: Tokens) -> Int64s:
    """Return the labels of the slots of pieces of packed rows, by what follows in the shard, int64 `(slots,)`.

    Raises:
        ShardSetError: a document does not end where its table says.
    """
    bounds, ends = find_bounds(pieces.slots), np.zeros(len(told), np.bool_)
    ends[bounds[1:][pieces.left == 0] - 1] = True
    wrong = np.flatnonzero((told == order.manifest.tokenizer.eos_id) != ends)
    if len(wrong):
        at = int(wrong[0])
        document = pieces.documents[np.searchsorted(bounds, at, "right") - 1]
        found = "ends without EOS" if ends[at] else "has an EOS before its end"
        raise shard.wrong_table(f"by it document {document} {found}; expected EOS at its end alone")
    return np.where(find_targets(order.manifest, told, bounds), told.astype(np.int64), NO_TARGET)


def account_tokens(shard_set: ShardSet, order: WindowOrder, windows: int) -> dict[str, Any]:
    """Count by source the tokens of the training split that its first windows predict, predict again and never predict.

    Reads the document table of every shard that was visited.

    Returns:
        `tokens_used` (targets, repetitions included), `tokens_repeated` (those that were targets before),
        `tokens_cropped_per_epoch`, and `tokens_by_source` {name: {used, repeated}}.
    """
    shards, names = shard_set.splits["train"], shard_set.manifest.source_names
    epochs, rest = divmod(windows, order.per_epoch)
    numbers = np.arange(rest) + epochs * order.per_epoch
    last = {visit.shard: (visit, starts) for visit, _, starts in order.group_by_visit(numbers)}
    visited = [index for index in range(len(shards)) if order.windows[index] and (epochs or index in last)]

    def count(index: int) -> Int64s:
        """Count by source the targets of a shard's windows in all epochs, and without repeats, int64 `(sources, 2)`."""
        lengths, sources = read_sources(shards[index], shard_set.source_numbers)
        if isinstance(order, RowOrder):
            # An epoch predicts every token of a document; of the last epoch, those in the pieces of its rows.
            whole = np.bincount(sources, lengths - order.before, len(names))
            part = whole if index in last else 0 * whole
            if index in last and len(last[index][1]) < order.windows[index]:
                pieces = order.find_pieces(*last[index])
                part = np.bincount(sources[pieces.documents], pieces.slots, len(names))
            return np.array([epochs * whole + part, whole if epochs else part]).T.astype(np.int64)
        # A whole epoch's targets are one range, which begins after the first token of its first window; of the last
        # epoch, each window is one. How many ranges lie over each other changes where one begins or ends.
        own = last[index][1] if index in last else np.empty(0, np.int64)
        begins = np.append(order.find_offsets(index, range(epochs)), own).astype(np.int64) + 1
        sizes = np.append(np.repeat(int(order.windows[index]), epochs), np.ones_like(own)) * order.seq_len
        places = np.append(begins, begins + sizes)
        order_of_places = np.argsort(places)
        depths = np.cumsum(np.repeat([1, -1], len(begins))[order_of_places])[:-1]

        counts = np.zeros((len(names), 2), np.int64)
        bounds = find_bounds(lengths)
        for source in range(len(names)):
            # Between the ends of two documents the count grows by 1 or 0 for each token, so interpolation is exact.
            counted = find_bounds(lengths * (sources == source))
            between: Float64s = np.diff(np.interp(places[order_of_places], bounds, counted))
            counts[source] = np.rint([between @ depths, between[depths > 0].sum()])
        return counts

    totals = sum(
        map_in_threads(count, visited, reads_at_once(shard_set.store)), start=np.zeros((len(names), 2), np.int64)
    )
    used, once = totals.sum(0).tolist()
    return {
        "tokens_used": used,
        "tokens_repeated": used - once,
        "tokens_cropped_per_epoch": order.cropped,
        "tokens_by_source": {
            name: {"used": used, "repeated": used - once}
            for name, (used, once) in zip(names, totals.tolist(), strict=True)
        },
    }
