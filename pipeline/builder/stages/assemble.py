"""The stage that writes the shards."""

import itertools
from collections.abc import Sequence
from typing import cast

import numpy as np

from pipeline import assemble
from pipeline.builder.publish import clear_output
from pipeline.builder.running_build import RunningBuild
from pipeline.encode.run import DOCUMENT_DTYPE
from pipeline.engine.tasks import Task, make_task
from pipeline.mix.mix_plan import ShardPlan
from shards.format.manifest import Split
from shards.format.writer import SetProperties, shard_name

READ_BYTES = 5 << 18
"""A task writes as many shards as it takes to read about this much of each run, as far as the limits below allow: 1.25
MiB on average, so that few runs give less than 1 MiB."""
LEAST_TASKS = 16
"""More shards per task leave no fewer tasks than this, so that a cluster has work for its nodes."""
MOST_TASK_BYTES = 6 << 30
"""Tokens of a task's shards: scratch on its machine."""
MOST_ROWS_BYTES = 256 << 20
"""Rows of a task's shards, which are in memory."""


def run_assemble(build: RunningBuild) -> None:
    """Run the assemble stage: write every missing shard."""
    recipe, tokenizer, plan, runs = build.recipe, build.tokenizer, build.plan, build.runs
    properties = SetProperties(
        tokenizer.vocab_size,
        tokenizer.eos_id,
        tokenizer.sha256,
        recipe.shards.zstd_level,
        bos_id=tokenizer.bos_id,
    )

    # Neighbouring shards share a task if they are small.
    tokens_a_shard = (plan.train_tokens + recipe.split.val_tokens) // max(1, len(plan.shards))
    token_bytes = np.dtype(runs[0].dtype).itemsize
    shard_bytes = tokens_a_shard * token_bytes
    documents = sum(source.left.documents for source in build.drops) // max(1, len(plan.shards))
    groups = group_assembled_shards(plan.shards, runs=len(runs), shard_bytes=shard_bytes, shard_documents=documents)
    # The largest start first, and the last ones may have cores to spare.
    order = sorted(range(len(groups)), key=lambda number: -len(groups[number]))
    threads = dict(zip(order, build.driver.executor.count_threads(len(groups)), strict=True))
    tasks: list[Task] = []
    for number, shards in enumerate(groups):
        payload = assemble.AssembleTask(
            shards,
            build.run_list.address,
            str(build.mix),
            tuple(recipe.source_names),
            recipe.seed,
            properties,
            conversations=tuple(source.name for source in recipe.sources if source.has_conversations),
            opening=tuple(tokenizer.chat.opening) if tokenizer.chat else (),
            special_ids=tuple(tokenizer.special_tokens.values()),
            fetch=build.work.folder is None,
            threads=threads[number],
        )
        # A task is named by its first and last shard.
        ends = [shard_name(cast("Split", shard.split), shard.index) for shard in shards]
        name = ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"
        tasks.append(make_task(payload, len(shards) * shard_bytes, name))

    def prepare(pending: list[Task]) -> None:
        clear_output(build.out, plan.shards, whole=not pending)

    result = build.run_stage("assemble", assemble.assemble_shards, tasks, build.out, before=prepare)
    build.shards = [entry for own in result.results.values() for entry in own.entries]
    for own in result.results.values():
        build.trained_tokens.update(own.trained_tokens)


def group_assembled_shards(
    shards: Sequence[ShardPlan], *, runs: int, shard_bytes: int, shard_documents: int
) -> list[tuple[ShardPlan, ...]]:
    """Divide shards among assemble tasks. It depends on the mix alone, not on the store or the engine.

    Args:
        shards: all shards, those of a split together and in order.
        runs: the number of runs, from each of which a shard takes a slice.
        shard_bytes: tokens of a usual shard, in bytes.
        shard_documents: documents of a usual shard.
    """
    # As many shards as make long reads, within the limits of scratch, memory and the number of tasks.
    usual = max(1, shard_bytes)
    rows = max(1, shard_documents * DOCUMENT_DTYPE.itemsize)
    limits = (MOST_TASK_BYTES // usual, MOST_ROWS_BYTES // rows, len(shards) // LEAST_TASKS)
    most = max(1, min(-(-READ_BYTES * runs // usual), *limits))
    groups: list[tuple[ShardPlan, ...]] = []
    for _, split in itertools.groupby(shards, key=lambda shard: shard.split):
        own = list(split)
        groups += [tuple(own[first : first + most]) for first in range(0, len(own), most)]
    return groups
