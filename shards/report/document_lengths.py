"""The lengths of a set's documents, by source, for a report.

Processes read the tables shard by shard; each returns a histogram of fixed size.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from shards.audit.histogram import BINS, bin_lengths
from shards.format.document_table import iter_documents, rows_by_source, wrong_document_table
from shards.format.reader import ShardSet
from shards.terminal.reporter import Progress, no_progress
from shards.workers import map_tasks

if TYPE_CHECKING:
    import numpy.typing as npt


def count_document_lengths(
    shard_set: ShardSet, *, workers: int, progress: Progress = no_progress
) -> npt.NDArray[np.int64]:
    """Count documents by source and length, over both splits.

    Args:
        shard_set: the set.
        workers: processes.
        progress: called with tokens done and tokens in all.

    Returns:
        int64 `(sources, histogram.BINS)`, sources in the manifest's order.

    Raises:
        ShardSetError: a document table is not what the manifest says.
    """
    total, done = sum(shard.num_tokens for shard in shard_set.shards), 0
    counts = np.zeros((len(shard_set.manifest.sources), BINS), np.int64)
    for number, found in map_tasks(_count_shard, shard_set, range(len(shard_set.shards)), workers):
        counts += found
        done += shard_set.shards[number].num_tokens
        progress(done, total)
    return counts


def _count_shard(shard_set: ShardSet, number: int) -> npt.NDArray[np.int64]:
    """Count the documents of the shard of this number by source and length, int64 `(sources, BINS)`."""
    numbers = {source.name: number for number, source in enumerate(shard_set.manifest.sources)}
    shard = shard_set.shards[number]
    counts = np.zeros((len(numbers), BINS), np.int64)
    for batch in iter_documents(shard, ["length", "source"]):
        lengths = cast("npt.NDArray[np.uint32]", np.from_dlpack(batch.column("length"))).astype(np.int64)
        bins = bin_lengths(lengths)
        for name, rows in rows_by_source(batch):
            if name not in numbers:
                raise wrong_document_table(shard, f"source {name!r}, which the manifest does not list")
            counts[numbers[name]] += np.bincount(bins[rows], minlength=BINS)
    return counts
