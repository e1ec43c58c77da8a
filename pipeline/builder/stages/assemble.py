"""The stage that writes the shards."""

from __future__ import annotations

from collections import Counter
from typing import cast

import numpy as np

from pipeline.assemble import assemble
from pipeline.assemble.grouping import group_assembled_shards
from pipeline.builder.publish import clear_output
from pipeline.builder.running_build import RunningBuild
from pipeline.engine.tasks import Task, make_task
from shards.format.manifest import Split
from shards.format.writer import SetProperties, shard_name


def run_assemble(build: RunningBuild) -> None:
    """Run the assemble stage: write every missing shard."""
    recipe, tokenizer, plan, runs = build.recipe, build.tokenizer, build.plan, build.runs
    properties = SetProperties(
        tokenizer.vocab_size,
        tokenizer.eos_id,
        tokenizer.sha256,
        recipe.shards.chosen_compression,
        bos_id=tokenizer.bos_id,
    )

    # Neighbouring shards share a task if they are small.
    tokens_a_shard = (plan.train_tokens + recipe.split.val_tokens) // max(1, len(plan.shards))
    shard_bytes = tokens_a_shard * np.dtype(runs[0].dtype).itemsize
    documents = sum(source.left.documents for source in build.drops) // max(1, len(plan.shards))
    groups = group_assembled_shards(plan.shards, runs=len(runs), shard_bytes=shard_bytes, shard_documents=documents)
    # The largest start first, and the last ones may have cores to spare.
    in_split = Counter(shard.split for shard in plan.shards)
    split_tokens = {"train": plan.train_tokens, "val": recipe.split.val_tokens}
    sizes = [len(own) * split_tokens[own[0].split] // in_split[own[0].split] for own in groups]
    order = sorted(range(len(groups)), key=lambda number: -sizes[number])
    threads = dict(zip(order, build.driver.executor.count_threads(len(groups)), strict=True))
    tasks: list[Task] = []
    for number, shards in enumerate(groups):
        payload = assemble.AssembleTask(
            shards,
            build.run_list.address,
            str(build.mix),
            tuple(source.name for source in recipe.sources),
            recipe.seed,
            properties,
            fetch=build.work.folder is None,
            threads=threads[number],
        )
        # A task is named by its first and last shard.
        ends = [shard_name(cast("Split", shard.split), shard.index) for shard in shards]
        name = ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"
        tasks.append(make_task(payload, sizes[number] * np.dtype(runs[0].dtype).itemsize, name))

    def prepare(pending: list[Task]) -> None:
        build.write_run_list(pending)
        clear_output(build.out, plan.shards, whole=not pending)

    result = build.run_stage("assemble", assemble.assemble_shards, tasks, build.out, before=prepare)
    build.shards = [entry for own in result.results for entry in own.entries]
