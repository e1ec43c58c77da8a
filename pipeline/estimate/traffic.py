"""Traffic: the requests and bytes of a build whose work folder or set is on an object store, and what they cost.

The requests follow from what the stages do: encoding writes a few files per unit, mixing reads the rows of every run,
assembling reads a slice of every run for each group of neighbouring shards, validation reads the set in long ranges
and its document tables twice, by tasks that leave receipts.
Retries, other writers and the tokenizer's few files are not counted, and of near-duplicates' comparison the least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline import validation_tasks
from pipeline.assemble.assemble import MOST_CHECKSUMS_BYTES
from pipeline.assemble.grouping import shards_an_assemble_task
from pipeline.encode.run import CONNECTIONS, DOCUMENT_DTYPE, MOST_KEPT_ROWS_BYTES
from pipeline.engine.checksums import BLOCK_BYTES, CHECKSUM_BYTES
from pipeline.mix.near_duplicates.bands import BANDS_BYTES, CHUNK_TOKENS
from pipeline.mix.near_duplicates.pairs import RANGE_ROWS, count_ranges
from pipeline.mix.near_duplicates.signatures import BANDS
from shards.format.codec import TAIL_BYTES
from shards.stores.object_store import PART_BYTES, REQUEST_BYTES, WHOLE_BYTES
from shards.validation.duplicates import PARTITION_DOCUMENTS

LISTED_AT_ONCE = 1000
"""Objects in one answer to a listing, of all three stores."""
STREAM_BYTES_PER_S = 85e6
"""Bytes a second of one worker's requests to a store in the same region. Source: Amazon's guide to the performance of
S3, which expects 85 to 90 MB/s of one connection."""
REQUEST_S = 0.03
"""Seconds until a request is answered, as an example: small ones take 10 to 200 ms of a store in the same region."""
FINDINGS_BYTES = 250
"""Bytes of a receipt for each shard that its task has checked and found sound: 248, measured."""
SIDECAR_BYTES, ENTRY_BYTES = 870, 1000
"""Bytes of a shard's sidecar, and of its entry in the manifest, measured."""

REQUEST_USD: dict[str, tuple[float, float]] = {
    "s3": (0.0004e-3, 0.005e-3),
    "gs": (0.0004e-3, 0.005e-3),
    "az": (0.0005e-3, 0.0065e-3),
}
"""US dollars of one request that reads, and of one that writes or lists, by scheme: the list prices of standard storage
in the cheapest regions of the United States. Traffic inside a region is free at all three."""


@dataclass(frozen=True, slots=True)
class StageTraffic:
    """Requests and bytes of one stage to an object store."""

    stage: str
    reads: int = 0
    """Requests that read."""
    writes: int = 0
    """Requests that write or list."""
    read_bytes: int = 0
    written_bytes: int = 0
    at_once: int = 1
    """Requests of one task that wait for their answers at the same time."""

    def seconds(self, workers: int) -> float:
        """Return how long bytes and answers take with this many workers at once."""
        bytes_s = (self.read_bytes + self.written_bytes) / STREAM_BYTES_PER_S
        answers_s = (self.reads + self.writes) * REQUEST_S / self.at_once
        return max(bytes_s, answers_s) / workers


@dataclass(frozen=True, slots=True)
class BuildSize:
    """The numbers that decide the traffic of a build."""

    runs: int
    """Of all sources, one per unit."""
    documents: int
    encoded_bytes: int
    """Bytes of the tokens of all runs."""
    shards: int
    set_tokens_bytes: int
    """Bytes of the set's tokens before compression."""
    set_bytes: int
    set_table_bytes: int = 0
    """Of `set_bytes`, the document tables."""
    measured_runs: int = 0
    """Runs whose documents have measures."""
    measures_bytes: int = 0
    token_bytes: int = 2
    near_duplicates: bool = False

    @property
    def shard_tokens_bytes(self) -> int:
        """Bytes of a shard's tokens before compression."""
        return _mean(self.set_tokens_bytes, self.shards)

    @property
    def assemble_tasks(self) -> int:
        """Tasks that write shards."""
        together = shards_an_assemble_task(
            self.shards,
            runs=self.runs,
            shard_bytes=self.shard_tokens_bytes,
            shard_documents=_mean(self.documents, self.shards),
        )
        return -(-self.shards // together)

    @property
    def check_tasks(self) -> int:
        """Tasks that check shards when the set is validated."""
        return -(-self.shards // validation_tasks.shards_a_validation_task(self.shards, self.shard_tokens_bytes))

    @property
    def partitions(self) -> int:
        """Number of parts in which validation compares all documents: one part runs in the driver, more run as one task
        each."""
        return max(1, -(-self.documents // PARTITION_DOCUMENTS))


def count_traffic(size: BuildSize, *, workers: int, work: bool, out: bool) -> tuple[StageTraffic, ...]:
    """Return the traffic of each stage that has any.

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
    tasks = size.assemble_tasks
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
        stages.append(StageTraffic("mix", reads, writes, read_bytes, size.documents // 8, CONNECTIONS))
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
        written = size.set_bytes if out else 0
        stages.append(StageTraffic("assemble", reads, writes, read_bytes, written, CONNECTIONS))
        stages.append(_validation(size, work=work, out=out))
    return tuple(stages)


def _validation(size: BuildSize, *, work: bool, out: bool) -> StageTraffic:
    """Return the traffic of the full level of validation, as tasks of the build."""
    reads = writes = read_bytes = written = 0
    if work:
        # A task: its receipt is not there, is written, and read by the driver. What a validation that was killed has
        # left is looked for, and all that this one leaves is removed.
        tasks = size.check_tasks + (size.partitions if size.partitions > 1 else 0)
        reads, writes = 2 * tasks, tasks + 5 + 2 * _listings(tasks)
        read_bytes = FINDINGS_BYTES * size.shards
        written = read_bytes * (2 if tasks > 1 else 1)  # of many tasks the driver also writes all results in one file
    if out:
        # A shard: its sidecar; its tokens, of a small file with one request, of another the seek table for the quick
        # level, for the full one and for the checksum of the file, and the frames in long ranges; its document table,
        # once to be checked and once for each partition that it is in. The driver reads the manifest twice.
        tokens_file = _mean(size.set_bytes - size.set_table_bytes, size.shards)
        small = tokens_file <= REQUEST_BYTES
        reads += size.shards * (4 if small else 6 + -(-tokens_file // REQUEST_BYTES)) + size.partitions - 1 + 2
        writes += _listings(3 * size.shards)
        read_bytes += size.set_bytes + size.set_table_bytes
        read_bytes += size.shards * (
            SIDECAR_BYTES + 2 * ENTRY_BYTES + (0 if small else 2 * min(TAIL_BYTES, tokens_file))
        )
    return StageTraffic("validate", reads, writes, read_bytes, written)


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
    return 1 if size <= WHOLE_BYTES else -(-size // PART_BYTES) + 3


def _listings(files: int) -> int:
    return -(-files // LISTED_AT_ONCE)


def _mean(total: int, count: int) -> int:
    return total // max(1, count)
