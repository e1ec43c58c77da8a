"""Fates: one byte for each document of the runs says what became of it in the mix: kept, or the step that dropped it.

The bytes are grouped by partition of the hash space, and in a partition by run. So a shard, which is a range of hashes,
needs neighbouring bytes for all its runs together. `edges.bin` tells where each run's documents of a partition begin.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.engine.checksums import ChecksummedWriter, WrittenFile, write_checksummed
from pipeline.engine.receipts import TaskOutput
from shards.stores.open import open_store
from shards.stores.store import Store

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Bools, Integers, UInt8s, UIntegers

FATES_FILE = "fates.bin"
EDGES_FILE = "edges.bin"
_EDGES_DTYPE = np.dtype("<u8")


class Fate(IntEnum):
    """The step of the mix that dropped a document, in the order of the steps: it meets no later one."""

    KEPT = 0
    LISTED = 1
    """A block list names its hash."""
    HOLDS_ITEM = 2
    """It holds an item of an evaluation set whose action is `drop`."""
    BEYOND_LIMIT = 3
    """A measure is beyond a limit of its source."""
    DUPLICATE = 4
    """An earlier document is equal."""
    NEAR_DUPLICATE = 5
    """A similar document stays."""
    NOT_TAKEN = 6
    """Its hash is above its source's `take`."""


class Fates:
    """The fates of all documents. Memory: 16 bytes for each run and partition, and a bit per document asked for."""

    def __init__(self, edges: UIntegers, read: Callable[[int], UInt8s]):
        """Set the parts.

        Args:
            edges: the index of each run's first document of each partition, `(partitions + 1, runs)`.
            read: returns the fates of a partition, run by run.
        """
        self.edges, self.read = edges, read
        self._kept_bits: dict[int, UInt8s] = {}
        self._begins: dict[int, Integers] = {}
        self._loading = threading.Lock()
        self._read_last = lru_cache(maxsize=1)(read)  # copies of one document are in one partition

    def kept(self, run: int, first: int, last: int) -> Bools:
        """Return which of the documents [first, last) of a run are kept, bool `(last - first,)`."""
        edges = self.edges[:, run]
        begin = int(np.searchsorted(edges, first, "right")) - 1
        end = int(np.searchsorted(edges, last, "left"))
        parts = [np.zeros(0, bool)]
        # A run's documents of a partition follow each other in its bytes.
        for part in range(begin, end):
            low, high = max(first, int(edges[part])), min(last, int(edges[part + 1]))
            start = self._place(part, run, low)
            # Threads that fetch for one task mostly want the same partition, which is read once.
            with self._loading:
                if part not in self._kept_bits:
                    self._kept_bits[part] = np.packbits(self.read(part) == Fate.KEPT)
            packed = self._kept_bits[part][start // 8 : -(-(start + high - low) // 8)]
            parts.append(np.unpackbits(packed)[start % 8 : start % 8 + high - low].view(bool))
        return np.concatenate(parts)

    def of(self, run: int, index: int) -> Fate:
        """Return the fate of the document at an index of a run."""
        part = int(np.searchsorted(self.edges[:, run], index, "right")) - 1
        return Fate(self._read_last(part)[self._place(part, run, index)])

    def _place(self, part: int, run: int, index: int) -> int:
        """Return how many documents of a partition are before the one at an index of a run."""
        if part not in self._begins:
            self._begins[part] = np.cumsum(np.insert(self.edges[part + 1] - self.edges[part], 0, 0))
        return int(self._begins[part][run]) + index - int(self.edges[part, run])


def write_fates(folder: Path, fates: Fates) -> dict[str, WrittenFile]:
    """Write the fates of all documents into a task's folder; return the files' entries for the receipt."""
    with ChecksummedWriter(folder / FATES_FILE) as file:
        for part in range(len(fates.edges) - 1):
            file.write(fates.read(part).data)
    edges = write_checksummed(folder / EDGES_FILE, fates.edges.astype(_EDGES_DTYPE).tobytes())
    return {FATES_FILE: file.facts(), EDGES_FILE: edges}


def read_fates(store: Store, runs: int) -> Fates:
    """Open the fates that `write_fates` wrote for this many runs into a task's folder.

    A partition is read once, and a bit for each of its documents is kept in memory; from a store with costly requests,
    for all tasks of this process.

    Raises:
        WorkFileDamagedError: a file is absent or damaged; reading the result may raise it, too.
    """
    return _open_remote(str(store), runs) if store.request_bytes else _open(store, runs)


@lru_cache(maxsize=1)
def _open_remote(place: str, runs: int) -> Fates:
    return _open(open_store(place), runs)


def _open(store: Store, runs: int) -> Fates:
    output = TaskOutput(store)
    edges = np.frombuffer(output.read(EDGES_FILE), _EDGES_DTYPE).reshape(-1, runs)
    begins = edges.sum(axis=1).astype(np.int64).tolist()
    return Fates(edges, lambda part: np.frombuffer(output.read(FATES_FILE, begins[part], begins[part + 1]), np.uint8))
