"""The pairs stage: documents with a band in common, which may be near-duplicates.

A task takes one range of keys from the bands of every run. Documents with the same key are a bucket. In a bucket, each
document is paired with every longer one; in one of more than `MOST_MEMBERS`, with the `CENTERS` longest alone, so that
the time is bounded. What is left out is counted. The longest ones are those that the selection keeps, so most of the
rest is found all the same.

A document is known by its run's number and its place in the run; the first of equal documents represents all. Pairs
are written sorted by partition, in parts of bounded size. Memory: about 60 bytes per row of the range, and one part.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from pipeline.arrow_arrays import split_by_size, spread
from pipeline.encode.run import CONNECTIONS, RunsAddress, distinct_runs, load_runs
from pipeline.engine.checksums import ChecksummedWriter, write_checksummed
from pipeline.engine.receipts import Result, TaskOutput
from pipeline.engine.tasks import NOT_IN_DIGEST, NUMBER, InDigest, Payload, Report, digest_of_payload
from pipeline.mix.near_duplicates.bands import (
    BAND_BITS,
    BAND_DTYPE,
    BANDS,
    BANDS_FILE,
    EDGE_BITS,
    EDGE_DTYPE,
    EDGES_FILE,
    BandsTask,
    bands_digest,
    find_range,
)
from shards.audit.ngrams import finalize
from shards.format.arrays import Int64s, Integers, Rows, UInt64s, find_bounds
from shards.format.content_hash import mark_first
from shards.stores.open import open_store
from shards.stores.store import Store
from shards.terminal.workers import map_in_threads

RANGE_ROWS = 1 << 23
"""Band rows that a task reads, about: 600,000 documents of all bands."""
MOST_MEMBERS = 64
"""In a larger bucket, documents are paired with its longest ones alone."""
CENTERS = 16
"""The number of those."""
PART_PAIRS = 1 << 21
"""Pairs that are sorted at once."""

PAIRS_FILE = "pairs.bin"
PAIR_DTYPE = np.dtype([("longer", "<u8"), ("shorter", "<u8")])
"""Two documents, as `_document_number` gives them; of equally long ones the first has the lower hash."""
PARTITIONS = 256
"""Pairs are divided by their longer document, evenly."""


@dataclass(frozen=True, slots=True)
class PairsTask(Payload):
    """The input of one pairs task; plain data."""

    CODE: ClassVar = (1, BandsTask.CODE)

    runs: RunsAddress
    """The address of the list of runs, of a `RunList`."""
    bands: Annotated[str, NOT_IN_DIGEST]
    """The address of the bands stage."""
    number: Annotated[int, InDigest(called=NUMBER)]
    """The number of the range of keys."""
    ranges: int
    """How many equal ranges there are."""


def pairs_digest(runs: str, number: int, ranges: int) -> str:
    """Return the digest of the pairs task of one of this many ranges, from the address of the list of runs."""
    return digest_of_payload(PairsTask(runs, "", number, ranges))


@dataclass(slots=True, kw_only=True)
class PairsResult(Result):
    """The result of a pairs task."""

    pairs: int
    """Repeated ones included."""
    left_out: int
    """Those that are not compared, of buckets of more than `MOST_MEMBERS` documents: both are no centers."""


def find_pairs(folder: Path, task: PairsTask, report: Report) -> PairsResult:
    """Write the pairs of documents that have a key of the range in common.

    Args:
        folder: an empty folder.
        task: the runs and the range.
        report: called with (bytes of band rows, 0) done so far.
    """
    rows, documents = _read_repeated(task, report)
    members, sizes = _order_members(rows, documents)
    edges: list[Int64s] = []
    pairs = 0
    with ChecksummedWriter(folder / PAIRS_FILE) as file:
        for part in _pair_up(members, sizes):
            ordered, own_edges = _sort_part(part)
            file.write(ordered.view(np.uint8).data)
            edges.append(own_edges + pairs)
            pairs += len(ordered)
    table = np.array(edges, EDGE_DTYPE).reshape(-1, PARTITIONS + 1)
    files = {PAIRS_FILE: file.facts(), EDGES_FILE: write_checksummed(folder / EDGES_FILE, table.tobytes())}
    others = sizes[sizes > MOST_MEMBERS].astype(np.int64) - CENTERS
    return PairsResult(pairs=pairs, left_out=int((others * (others - 1) // 2).sum()), files=files)


def _read_repeated(task: PairsTask, report: Report) -> tuple[Rows, UInt64s]:
    """Read the range of keys from every run; return the rows whose key makes pairs, and their documents."""
    # Find where the range lies in each run's bands, then read these rows into one array.
    runs = distinct_runs(load_runs(task.runs))
    stores = [open_store(f"{task.bands}/{bands_digest(run.digest)}") for run in runs]
    bands = [TaskOutput(store) for store in stores]
    threads = CONNECTIONS if stores and stores[0].request_bytes else 1
    places = map_in_threads(lambda own: find_range(own, task.number, task.ranges), bands, threads)
    ends = np.cumsum([last - first for first, last in places])
    rows = np.empty(int(ends[-1]) if len(ends) else 0, BAND_DTYPE)

    def read(number: int) -> None:
        first, last = places[number]
        end = int(ends[number])
        rows[end - (last - first) : end] = bands[number].read_rows(BANDS_FILE, BAND_DTYPE, first, last)
        report(end * BAND_DTYPE.itemsize, 0)

    map_in_threads(read, range(len(bands)), threads)
    # A key that only one row has pairs nothing.
    keys = np.sort(rows["key"])
    repeated = np.unique(keys[1:][keys[1:] == keys[:-1]])
    del keys
    places_found = np.flatnonzero(np.isin(rows["key"], repeated))
    found = rows[places_found]
    return found, _document_number(np.searchsorted(ends, places_found, "right"), found["index"])


def _document_number(run: Integers, index: Integers) -> UInt64s:
    """Return the numbers that pairs have for documents, from the numbers of their runs and their places in these."""
    return (run.astype(np.uint64) << np.uint64(32)) | index.astype(np.uint64)


def _order_members(rows: Rows, documents: UInt64s) -> tuple[UInt64s, Int64s]:
    """Return the documents to pair, bucket by bucket, longest first, contents once; and how many each bucket has."""
    order = np.lexsort((documents, rows["hash"], ~rows["characters"], rows["key"]))
    rows, documents = rows[order], documents[order]
    new_key = mark_first(rows["key"], rows["key"])
    # In a bucket, equal documents are one: they have the same length and hash.
    new = new_key | mark_first(rows["characters"], rows["hash"])
    buckets = np.cumsum(new_key)[new]
    sizes = np.bincount(buckets)[1:] if len(buckets) else np.zeros(0, np.int64)
    return documents[new], sizes


def _pair_up(documents: UInt64s, sizes: Int64s) -> Iterator[Rows]:
    """Yield the pairs of buckets in parts, `PAIR_DTYPE (pairs,)`."""
    # Each document is paired with those before it in its bucket, or with the centers alone.
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    places = np.arange(len(documents)) - starts
    partners = np.where(np.repeat(sizes > MOST_MEMBERS, sizes), np.minimum(places, CENTERS), places)
    # Yield parts of about `PART_PAIRS` pairs; one document's pairs stay together.
    for first, last in split_by_size(partners, PART_PAIRS):
        counts = partners[first:last]
        pairs = np.empty(int(counts.sum()), PAIR_DTYPE)
        pairs["longer"] = documents[spread(starts[first:last], counts)]
        pairs["shorter"] = np.repeat(documents[first:last], counts)
        if len(pairs):
            yield pairs


def _sort_part(pairs: Rows) -> tuple[Rows, Int64s]:
    """Return the distinct pairs in order of partition, and where each partition begins, `(PARTITIONS + 1,)`."""
    pairs = distinct_pairs(pairs)
    # A hash of the longer document spreads the partitions evenly.
    partition = (finalize(pairs["longer"]) >> np.uint64(56)).astype(np.int64)
    edges = find_bounds(np.bincount(partition, minlength=PARTITIONS))
    return pairs[np.argsort(partition, kind="stable")], edges


def distinct_pairs(pairs: Rows) -> Rows:
    """Return each pair once, sorted by the longer document, then by the shorter one."""
    pairs = pairs[np.lexsort((pairs["shorter"], pairs["longer"]))]
    return pairs[mark_first(pairs["longer"], pairs["shorter"])]


def read_pairs(store: Store, first: int, last: int) -> Rows:
    """Read the pairs of the partitions [first, last) that a task wrote; a pair may be there several times.

    Raises:
        WorkFileDamagedError: a file is absent or damaged.
    """
    output = TaskOutput(store)
    edges = output.read_rows(EDGES_FILE, EDGE_DTYPE).reshape(-1, PARTITIONS + 1)
    parts = [output.read_rows(PAIRS_FILE, PAIR_DTYPE, int(part[first]), int(part[last])) for part in edges]
    return np.concatenate([np.zeros(0, PAIR_DTYPE), *parts])


def count_ranges(rows: int) -> int:
    """Return the number of ranges of keys, one for each pairs task, for this many rows: a power of two.

    Each range has about `RANGE_ROWS` of them.
    """
    # Bands fill 14 of the 16 parts that the first bits of a key can name.
    wanted = rows * (1 << BAND_BITS) / BANDS / RANGE_ROWS
    return min(1 << EDGE_BITS, 1 << max(0, int(np.ceil(wanted)) - 1).bit_length())
