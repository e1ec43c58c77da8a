"""Hashes and lengths of the documents of all runs, by partition of the hash space.

A run is in hash order, so a partition is one range of each run; read there, it would take as many reads as there are
runs, of ranges that get shorter as partitions get more: four times the reads for twice the documents. So each run is
read once, from start to end, and what a mix needs of its rows is written to a scratch file, of `GROUP_DOCUMENTS`
documents one chunk for each partition. A partition is then read in whole chunks, of megabytes.

Scratch: 20 bytes per document, in a file without a name that ends with the process. Memory: 20 bytes per document of a
group, 8 bytes for each run and partition, and 16 for each chunk.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from pipeline.encode.run import DOCUMENT_DTYPE, Run
from shards.errors import RunError
from shards.format.equal_hashes import HashRange, count_range_bits

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Bools, Int64s, UInt32s, UInt64s, UIntegers

PARTITION_DOCUMENTS = 1 << 24
"""A partition has about as many documents at most."""
GROUP_DOCUMENTS = 1 << 22
"""Documents of consecutive runs whose rows are held before they are written: 84 MB. Of 400 million documents in 32
partitions, a chunk is 2.6 MB."""
COLUMNS = ("hash_hi", "hash_lo", "length")
CHUNK_BYTES = sum(DOCUMENT_DTYPE[name].itemsize for name in COLUMNS)
"""Bytes of a document in the scratch file."""


@dataclass(frozen=True, slots=True)
class Part:
    """Hashes and lengths of documents in one partition, run by run, each `(documents,)`."""

    hi: UInt64s
    lo: UInt64s
    lengths: UInt32s

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> Part:
        """Return the documents of a chunk, whose columns follow each other."""
        hi = np.frombuffer(data, np.uint64, size)
        lo = np.frombuffer(data, np.uint64, size, hi.nbytes)
        return cls(hi, lo, np.frombuffer(data, np.uint32, size, hi.nbytes + lo.nbytes))

    def only(self, chosen: Bools) -> Part:
        """Return some of the documents."""
        return Part(self.hi[chosen], self.lo[chosen], self.lengths[chosen])


@dataclass(frozen=True, slots=True)
class _Group:
    """Consecutive runs of one source, and where their chunks are in the scratch file."""

    source: int
    first: int
    last: int
    begin: int
    """The first byte of the chunk of partition 0; the others follow."""
    checksums: tuple[int, ...]
    """Of each partition's chunk."""


class Partitions:
    """The documents of all runs, partition by partition. The constructor reads every run once."""

    def __init__(self, runs: list[Run], scratch: Path | None = None):
        """Read the runs.

        Args:
            runs: of all sources.
            scratch: the folder on whose disk the scratch file is; the system's folder for temporary files when None.

        Raises:
            WorkFileDamagedError: a run is not as it was written.
        """
        total = sum(run.num_documents for run in runs)
        self.bits = count_range_bits(total, PARTITION_DOCUMENTS)
        self.edges: UIntegers = np.zeros((1 + (1 << self.bits), len(runs)), np.uint64)
        """The index of each run's first document of each partition, `(partitions + 1, runs)`."""
        self._file = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 the finalizer closes it
        weakref.finalize(self, self._file.close)
        self._groups = [self._write(runs, first, last) for first, last in _group(runs)]
        self._file.flush()

    def _write(self, runs: list[Run], first: int, last: int) -> _Group:
        """Write the chunks of the runs [first, last), and note where their partitions end."""
        starts = np.array([HashRange(part, self.bits).start for part in range(1, 1 << self.bits)], np.uint64)
        columns: list[tuple[UIntegers, ...]] = []
        for i in range(first, last):
            # A run is in hash order: its partitions are ranges of it.
            rows = runs[i].read_documents(0, runs[i].num_documents)
            columns.append(tuple(np.ascontiguousarray(rows[name]) for name in COLUMNS))
            self.edges[1:, i] = [*columns[-1][0].searchsorted(starts), len(rows)]
        # Partition by partition, and in each column by column: a chunk is read back as it lies.
        begin, checksums = self._file.tell(), list[int]()
        for part in range(1 << self.bits):
            hashing = xxhash.xxh3_64()
            edges = self.edges[part : part + 2, first:last].T.tolist()
            for own in zip(*columns, strict=True):
                chunk = np.concatenate([column[low:high] for column, (low, high) in zip(own, edges, strict=True)])
                self._file.write(chunk.data)
                hashing.update(chunk.data)
            checksums.append(hashing.intdigest())
        return _Group(runs[first].source, first, last, begin, tuple(checksums))

    def sizes(self, number: int) -> Int64s:
        """Return how many documents each run has in a partition, `(runs,)`."""
        return (self.edges[number + 1] - self.edges[number]).astype(np.int64)

    def read(self, number: int) -> Part:
        """Return all documents of a partition, run by run."""
        return _join([self._read(number, group) for group in self._groups])

    def read_source(self, number: int, source: int, kept: Bools) -> Part:
        """Return some documents of one source in a partition, run by run.

        Args:
            number: the partition.
            source: the source.
            kept: which documents of all the partition's are wanted.
        """
        begins = np.append(0, np.cumsum(self.sizes(number)))
        return _join(
            [
                self._read(number, group).only(kept[begins[group.first] : begins[group.last]])
                for group in self._groups
                if group.source == source
            ]
        )

    def _read(self, number: int, group: _Group) -> Part:
        """Read a chunk.

        Raises:
            RunError: the disk gives other bytes than were written.
        """
        # The documents of a group lie partition after partition.
        own = self.edges[:, group.first : group.last].sum(axis=1).astype(np.int64)
        size = int(own[number + 1] - own[number])
        self._file.seek(group.begin + int(own[number]) * CHUNK_BYTES)
        data = self._file.read(size * CHUNK_BYTES)
        if len(data) != size * CHUNK_BYTES or xxhash.xxh3_64_intdigest(data) != group.checksums[number]:
            message = "the scratch file of the mix differs from what was just written to it: the disk fails"
            raise RunError(f"{message}. Check it, or use --scratch on another disk, and run the same command again.")
        return Part.from_bytes(data, size)


def _join(parts: list[Part]) -> Part:
    """Return documents of several chunks as one."""
    columns = [(part.hi, part.lo, part.lengths) for part in parts] or [
        (np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.uint32))
    ]
    return Part(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def _group(runs: list[Run]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of consecutive runs of one source, with at most `GROUP_DOCUMENTS` documents or one run."""
    first, documents = 0, 0
    for i, run in enumerate(runs):
        if i > first and (run.source != runs[first].source or documents + run.num_documents > GROUP_DOCUMENTS):
            yield first, i
            first, documents = i, 0
        documents += run.num_documents
    if runs:
        yield first, len(runs)
