"""Hashes and lengths of the documents of all runs, by partition of the hash space.

A run is in hash order, so a partition is one range of each run; read there, it would take as many reads as there are
runs, of ranges that get shorter as partitions get more: four times the reads for twice the documents. So each run is
read once, from start to end, and what a mix needs of its rows is written to a scratch file, of `GROUP_DOCUMENTS`
documents one chunk for each partition. A partition is then read in whole chunks, of megabytes.

Scratch: 20 bytes per document, in a file without a name that ends with the process. Memory: 20 bytes per document of a
group, 8 bytes for each run and partition, and 300 for each chunk.
"""

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from pipeline.encode.run import DOCUMENT_DTYPE, Run
from pipeline.mix.evidence import RowPlaces
from shards.errors import RunError
from shards.format.arrays import Integers, UInt32s, UInt64s
from shards.format.content_hash import HashRange, count_range_bits

PARTITION_DOCUMENTS = 1 << 24
"""A partition has about as many documents at most."""
GROUP_DOCUMENTS = 1 << 22
"""Documents of consecutive runs whose rows are held before they are written: 84 MB. Of 400 million documents in 32
partitions, a chunk is 2.6 MB."""
COLUMNS = ("hash_hi", "hash_lo", "length")
CHUNK_BYTES = sum(DOCUMENT_DTYPE[name].itemsize for name in COLUMNS)
"""Bytes of a document in the scratch file."""


class Part(NamedTuple):
    """Hashes and lengths of documents in one partition, run by run, each `(documents,)`."""

    hi: UInt64s
    lo: UInt64s
    lengths: UInt32s


class ScratchChunks:
    """A file without a name, in chunks that are checked when they are read."""

    def __init__(self, folder: Path | None):
        """Make the file with the chunks of partitions, in a folder on the disk to use; None is the system's."""
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 the finalizer closes it
        weakref.finalize(self, self._file.close)
        self._places: dict[Any, tuple[int, int, int]] = {}
        """First byte, bytes and checksum of each chunk."""

    def write(self, key: Any, arrays: Iterable[Any]) -> None:
        """Write arrays of a partition, end to end, as the chunk of a key: the first time, or again as many bytes."""
        known = self._places.get(key)
        begin = self._file.seek(known[0]) if known else self._file.seek(0, os.SEEK_END)
        hashing = xxhash.xxh3_64()
        for array in arrays:
            self._file.write(array.data)
            hashing.update(array.data)
        self._places[key] = begin, self._file.tell() - begin, hashing.intdigest()

    def read(self, key: Any) -> bytearray:
        """Read a chunk of a partition.

        Raises:
            RunError: the disk gives other bytes than were written.
        """
        begin, size, checksum = self._places[key]
        self._file.seek(begin)
        data = bytearray(self._file.read(size))
        # The set depends on these bytes: they are compared like those of the work folder.
        if len(data) != size or xxhash.xxh3_64_intdigest(data) != checksum:
            message = "a scratch file of the mix differs from what was just written to it: the disk is failing"
            raise RunError(f"{message}. Check it, or use --scratch on another disk, and run the same command again.")
        return data


class Partitions:
    """The documents of all runs, partition by partition. The constructor reads every run once."""

    def __init__(self, runs: list[Run], scratch: Path | None = None):
        """Read the hashes and lengths of the runs, partition by partition.

        Args:
            runs: of all sources.
            scratch: the folder on whose disk the scratch file is; the system's folder for temporary files when None.

        Raises:
            WorkFileDamagedError: a run is not as it was written.
        """
        total = sum(run.num_documents for run in runs)
        self.bits = count_range_bits(total, PARTITION_DOCUMENTS)
        self.places = RowPlaces(np.zeros((1 + (1 << self.bits), len(runs)), np.uint64))
        self.scratch = ScratchChunks(scratch)
        self._groups = list(_group(runs))
        for first, last in self._groups:
            self._write(runs, first, last)
        self._sources = [runs[first].source for first, _ in self._groups]

    def _write(self, runs: list[Run], first: int, last: int) -> None:
        """Write the chunks of partitions of the runs [first, last), and note where their partitions end."""
        starts = np.array([HashRange(part, self.bits).start for part in range(1, 1 << self.bits)], np.uint64)
        columns: list[tuple[Integers, ...]] = []
        for i in range(first, last):
            # A run is in hash order: its partitions are ranges of it.
            rows = runs[i].read_documents(0, runs[i].num_documents)
            columns.append(tuple(np.ascontiguousarray(rows[name]) for name in COLUMNS))
            self.places.edges[1:, i] = [*columns[-1][0].searchsorted(starts), len(rows)]
        # Partition by partition, and in each column by column: a chunk is read back as it lies.
        for part in range(1 << self.bits):
            edges = self.places.edges[part : part + 2, first:last].T.tolist()
            chunk = [
                column[low:high]
                for own in zip(*columns, strict=True)
                for column, (low, high) in zip(own, edges, strict=True)
            ]
            self.scratch.write((part, first), chunk)

    def read(self, number: int, source: int | None = None) -> Part:
        """Return the documents of a partition, of all sources or of one, run by run.

        Raises:
            RunError: the disk gives other bytes than were written.
        """
        parts = [Part(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.uint32))]
        for (first, _), own in zip(self._groups, self._sources, strict=True):
            if source in (None, own):
                data = self.scratch.read((number, first))
                size = len(data) // CHUNK_BYTES
                hi, lo = np.frombuffer(data, np.uint64, 2 * size).reshape(2, size)
                lengths = np.frombuffer(data, np.uint32, offset=hi.nbytes + lo.nbytes)
                parts.append(Part(hi, lo, lengths))
        return Part._make(map(np.concatenate, zip(*parts, strict=True)))


def _group(runs: list[Run]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of consecutive runs of one source to partition at once: one, or `GROUP_DOCUMENTS` at most."""
    first, documents = 0, 0
    for i, run in enumerate(runs):
        if i > first and (run.source != runs[first].source or documents + run.num_documents > GROUP_DOCUMENTS):
            yield first, i
            first, documents = i, 0
        documents += run.num_documents
    if runs:
        yield first, len(runs)
