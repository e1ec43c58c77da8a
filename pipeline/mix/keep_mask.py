"""Which documents of the runs a mix keeps: one bit per document.

The bits are grouped by partition of the hash space, and in a partition by run. So a shard, which is a range of hashes,
needs a few neighbouring bytes for all its runs together. `edges.bin` tells where each run's documents of a partition
begin.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.engine.checksums import ChecksummedWriter, write_checksummed
from pipeline.engine.receipts import TaskOutput
from shards.stores.open import open_store
from shards.stores.store import Store

if TYPE_CHECKING:
    import numpy.typing as npt

KEPT_FILE = "kept.bin"
EDGES_FILE = "edges.bin"
_EDGES_DTYPE = np.dtype("<u8")


class Kept:
    """Which documents of each run are kept. Memory: 16 bytes for each run and partition, and what `bits_of` keeps."""

    def __init__(self, edges: npt.NDArray[np.unsignedinteger], bits_of: Callable[[int], npt.NDArray[np.uint8]]):
        """Set the parts.

        Args:
            edges: the index of each run's first document of each partition, `(partitions + 1, runs)`.
            bits_of: returns the packed bits of a partition.
        """
        self.edges = edges
        self.bits_of = bits_of
        self._places: dict[int, npt.NDArray[np.unsignedinteger]] = {}

    def mask(self, run: int, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Return which of the documents [first, last) of a run are kept, bool `(last - first,)`."""
        edges = self.edges[:, run]
        begin = int(np.searchsorted(edges, first, "right")) - 1
        end = int(np.searchsorted(edges, last, "left"))
        parts = [np.zeros(0, bool)]
        for part in range(begin, end):
            low, high = max(first, int(edges[part])), min(last, int(edges[part + 1]))
            start = self._place(part, run) + low - int(edges[part])
            packed = self.bits_of(part)[start // 8 : -(-(start + high - low) // 8)]
            parts.append(np.unpackbits(packed)[start % 8 : start % 8 + high - low].view(bool))
        return np.concatenate(parts)

    def _place(self, part: int, run: int) -> int:
        """Return how many documents of a partition are of the runs before one: theirs come first."""
        if part not in self._places:
            self._places[part] = np.cumsum(np.insert(self.edges[part + 1] - self.edges[part], 0, 0))
        return int(self._places[part][run])


def write_kept(folder: Path, kept: Kept) -> dict[str, dict[str, Any]]:
    """Write the keep mask: its bits and the edges; return the files' entries for the receipt."""
    with ChecksummedWriter(folder / KEPT_FILE) as file:
        for part in range(len(kept.edges) - 1):
            file.write(kept.bits_of(part).tobytes())
    edges = write_checksummed(folder / EDGES_FILE, kept.edges.astype(_EDGES_DTYPE).tobytes())
    return {KEPT_FILE: file.facts(), EDGES_FILE: edges}


def read_kept(store: Store, runs: int) -> Kept:
    """Open the keep mask that `write_kept` wrote for this many runs into a task's folder.

    The bits of a partition are read once, and kept in memory; from a store with costly requests, for all tasks of this
    process.

    Raises:
        WorkFileDamagedError: a file is absent or damaged; reading the result may raise it, too.
    """
    return _open_remote(str(store), runs) if store.request_bytes else _open(store, runs)


@lru_cache(maxsize=1)
def _open_remote(place: str, runs: int) -> Kept:
    return _open(open_store(place), runs)


def _open(store: Store, runs: int) -> Kept:
    output = TaskOutput(store)
    edges = np.frombuffer(output.read(EDGES_FILE), _EDGES_DTYPE).reshape(-1, runs)
    sizes = -(-np.diff(edges.sum(axis=1).astype(np.int64)) // 8)
    places = [0, *np.cumsum(sizes).tolist()]

    @cache
    def bits_of(part: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(output.read(KEPT_FILE, places[part], places[part + 1]), np.uint8)

    return Kept(edges, bits_of)
