"""The assemble tasks: which shards each of them writes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pipeline.encode.run import DOCUMENT_DTYPE
from pipeline.mix.mix_plan import ShardPlan

READ_BYTES = 5 << 18
"""A task writes as many shards as it takes to read about this much of each run, as far as the limits below allow: 1.25
MiB on average, so that few runs give less than 1 MiB."""
LEAST_TASKS = 16
"""More shards per task leave no fewer tasks than this, so that a cluster has work for its nodes."""
MOST_TASK_BYTES = 6 << 30
"""Tokens of a task's shards: scratch on its machine."""
MOST_ROWS_BYTES = 256 << 20
"""Rows of a task's shards, which are in memory."""


def group_assembled_shards(shards: Sequence[ShardPlan], **sizes: int) -> list[tuple[ShardPlan, ...]]:
    """Divide shards among assemble tasks. It depends on the mix alone, not on the store or the engine.

    Args:
        shards: all shards, those of a split together and in order.
        sizes: what `shards_an_assemble_task` goes by.
    """
    most = shards_an_assemble_task(len(shards), **sizes)
    groups: list[tuple[ShardPlan, ...]] = []
    for _, split in itertools.groupby(shards, key=lambda shard: shard.split):
        own = list(split)
        groups += [tuple(own[first : first + most]) for first in range(0, len(own), most)]
    return groups


def shards_an_assemble_task(shards: int, *, runs: int, shard_bytes: int, shard_documents: int) -> int:
    """Return how many shards an assemble task writes at most.

    Args:
        shards: the number of all shards.
        runs: the number of runs, from each of which a shard takes a slice.
        shard_bytes: tokens of a usual shard, in bytes.
        shard_documents: documents of a usual shard.
    """
    # As many shards as make long reads, within the limits of scratch, memory and the number of tasks.
    usual = max(1, shard_bytes)
    rows = max(1, shard_documents * DOCUMENT_DTYPE.itemsize)
    limits = (MOST_TASK_BYTES // usual, MOST_ROWS_BYTES // rows, shards // LEAST_TASKS)
    return max(1, min(-(-READ_BYTES * runs // usual), *limits))
