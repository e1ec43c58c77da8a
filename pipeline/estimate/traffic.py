"""Traffic: the requests and bytes of a build whose work folder or set is on an object store, and what they cost.

The requests follow from what the stages do: encoding writes a few files a unit, mixing reads the rows of every run,
assembling reads a slice of every run for each group of neighbouring shards, validation reads the set in long ranges.
Retries, other writers and the tokenizer's few files are not counted, and of near-duplicates' comparison the least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.assemble import MOST_CHECKSUMS_BYTES, shards_a_task
from pipeline.encode.run import DOCUMENT_DTYPE, MOST_KEPT_ROWS_BYTES
from pipeline.engine.checksums import BLOCK_BYTES, CHECKSUM_BYTES
from pipeline.mix.near_duplicates.bands import BANDS_BYTES, CHUNK_TOKENS, count_ranges
from pipeline.mix.near_duplicates.pairs import RANGE_ROWS
from pipeline.mix.near_duplicates.signatures import BANDS
from shards.stores.objects import PART_BYTES, REQUEST_BYTES

LISTED_AT_ONCE = 1000
"""Objects in one answer to a listing, of all three stores."""
STREAM_BYTES_PER_S = 85e6
"""Bytes a second of one worker's requests to a store in the same region. Source: Amazon's guide to the performance of
S3, which expects 85 to 90 MB/s of one connection."""

REQUEST_USD: dict[str, tuple[float, float]] = {
    "s3": (0.0004e-3, 0.005e-3),
    "gs": (0.0004e-3, 0.005e-3),
    "az": (0.0005e-3, 0.0065e-3),
}
"""US dollars of one request that reads, and of one that writes or lists, by scheme: the list prices of standard storage
in the cheapest regions of the United States. Traffic inside a region is free at all three."""


@dataclass(frozen=True, slots=True)
class StageTraffic:
    """What one stage asks of an object store."""

    stage: str
    reads: int = 0
    """Requests that read."""
    writes: int = 0
    """Requests that write or list."""
    read_bytes: int = 0
    written_bytes: int = 0

    def seconds(self, workers: int) -> float:
        """Return how long the bytes take with so many workers at once."""
        return (self.read_bytes + self.written_bytes) / (STREAM_BYTES_PER_S * workers)


@dataclass(frozen=True, slots=True)
class BuildSize:
    """The numbers that decide the traffic of a build."""

    runs: int
    """Of all sources, one a unit."""
    documents: int
    encoded_bytes: int
    """Bytes of the tokens of all runs."""
    shards: int
    set_tokens_bytes: int
    """Bytes of the set's tokens before compression."""
    set_bytes: int
    measured_runs: int = 0
    """Runs whose documents have measures."""
    measures_bytes: int = 0
    token_bytes: int = 2
    near_duplicates: bool = False


def count_traffic(size: BuildSize, *, workers: int, work: bool, out: bool) -> tuple[StageTraffic, ...]:
    """Return the traffic of each stage that has some.

    Args:
        size: the build.
        workers: processes that assemble.
        work: whether the work folder is on an object store.
        out: whether the set is.
    """
    runs = size.runs
    stages: list[StageTraffic] = []
    rows_bytes = size.documents * DOCUMENT_DTYPE.itemsize
    checked = 1 + CHECKSUM_BYTES / BLOCK_BYTES
    together = shards_a_task(
        size.shards,
        runs=runs,
        shard_bytes=_mean(size.set_tokens_bytes, size.shards),
        shard_documents=_mean(size.documents, size.shards),
    )
    tasks = -(-size.shards // together)
    if work:
        # A unit: it looks for its receipt, writes rows, checksums, receipt and tokens; the driver reads the receipt.
        token_parts = runs * _put_requests(_mean(size.encoded_bytes, runs))
        row_parts = runs * _put_requests(_mean(rows_bytes, runs))
        row_parts += size.measured_runs * _put_requests(_mean(size.measures_bytes, size.measured_runs))
        written = int((size.encoded_bytes + rows_bytes + size.measures_bytes) * checked)
        files = 4 * runs + size.measured_runs
        stages.append(
            StageTraffic("encode", 2 * runs, token_parts + row_parts + 2 * runs + _listings(files), 0, written)
        )
        # Each run's rows, measures and checksums; then a bit for each document, and what cleaning drops.
        reads, writes = 2 * runs + size.measured_runs, 6 if size.measured_runs else 5
        read_bytes = int((rows_bytes + size.measures_bytes) * checked)
        stages += _near_duplicates(size) if size.near_duplicates else ()
        stages.append(StageTraffic("mix", reads, writes, read_bytes, size.documents // 8))
    if work or out:
        # A task: the tokens of each run, and its own receipt: not there, still not there, and read by the driver. Once
        # a process: the list of runs, the mix's four files; each run's rows and checksums, or once a task if they are
        # too many to be kept.
        processes = min(tasks, workers)
        kept = (size.encoded_bytes + rows_bytes) * (checked - 1) <= MOST_CHECKSUMS_BYTES
        reads = tasks * (runs + 3) + processes * 5 + (processes if kept else tasks) * runs if work else 0
        reads += (processes if rows_bytes <= MOST_KEPT_ROWS_BYTES else tasks) * runs if work else 0
        read_bytes = int((size.set_tokens_bytes + rows_bytes) * checked) if work else 0
        writes = tasks if work else 0
        if out:
            writes += size.shards * (_put_requests(_mean(size.set_bytes, size.shards)) + 2) + _listings(3 * size.shards)
        stages.append(StageTraffic("assemble", reads, writes, read_bytes, size.set_bytes if out else 0))
    if out:
        ranges = size.set_bytes // REQUEST_BYTES + 10 * size.shards  # sizes, sidecars, seek tables, document tables
        stages.append(StageTraffic("validate", ranges, _listings(3 * size.shards), size.set_bytes, 0))
    return tuple(stages)


def _near_duplicates(size: BuildSize) -> tuple[StageTraffic, ...]:
    """Return the traffic of the stages that find near-duplicates, as far as it does not depend on how many there are.

    Of the comparison the least is counted: one task, which reads documents of each run once.
    """
    runs, rows = size.runs, size.documents * BANDS
    ranges = count_ranges(rows, RANGE_ROWS)
    bands_bytes, rows_bytes = size.documents * BANDS_BYTES, size.documents * DOCUMENT_DTYPE.itemsize
    # A run: its receipt, rows, checksums, and its tokens in pieces; a task's own receipt as when assembling.
    pieces = runs * -(-_mean(size.encoded_bytes, runs) // (CHUNK_TOKENS * size.token_bytes))
    written = runs * (_put_requests(_mean(bands_bytes, runs)) + 3) + _listings(4 * runs)
    # A range of keys, of each run: its receipt, checksums, where the range begins and ends, and the range.
    return (
        StageTraffic("bands", 6 * runs + pieces, written, size.encoded_bytes + rows_bytes, bands_bytes),
        StageTraffic("pairs", ranges * (5 * runs + 3), 4 * ranges + _listings(4 * ranges), bands_bytes, 0),
        StageTraffic("similar", 4 * ranges + 3 * runs + 4, 4, 0, 0),
    )


def request_usd(traffic: Sequence[StageTraffic], scheme: str) -> float:
    """Return what the requests cost at a store, in US dollars."""
    read, write = REQUEST_USD[scheme]
    return sum(stage.reads * read + stage.writes * write for stage in traffic)


def _put_requests(size: int) -> int:
    """Return the requests that write a file: one, or its parts with a beginning, an end and a look at the result."""
    return 1 if size <= PART_BYTES else -(-size // PART_BYTES) + 3


def _listings(files: int) -> int:
    return -(-files // LISTED_AT_ONCE)


def _mean(total: int, count: int) -> int:
    return total // max(1, count)
