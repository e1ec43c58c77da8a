"""The stage that writes the shards."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from pipeline.assemble import assemble
from pipeline.assemble.grouping import group_assembled_shards
from pipeline.builder.kept import find_linked, link_shards, put_back
from pipeline.builder.publish import clear_output
from pipeline.builder.records import NUMBER
from pipeline.builder.running_build import RunningBuild
from pipeline.builder.stages.mix import write_run_list
from pipeline.encode.run import RunList
from pipeline.engine.tasks import Task, digest_in, make_task, versions_of
from pipeline.mix.mix_plan import MixPlan
from pipeline.recipe.schema import Recipe
from pipeline.sources.carried_columns import merge_carried
from pipeline.tokenizer.encoder import TokenizerInfo
from shards.format.manifest import ShardEntry, Split
from shards.format.writer import SetProperties, shard_name
from shards.stores.store import WritableStore


def run_assemble(
    running: RunningBuild,
    recipe: Recipe,
    tokenizer: TokenizerInfo,
    mixed: MixPlan,
    runs: RunList,
    mix_folder: WritableStore,
) -> list[ShardEntry]:
    """Run the assemble stage: write every missing shard; return all entries in order."""
    carried = tuple(merge_carried(recipe, [selection.carried for selection in running.selections]))
    properties = SetProperties(
        tokenizer.vocab_size,
        tokenizer.eos_id,
        tokenizer.sha256,
        recipe.shards.chosen_compression,
        bos_id=tokenizer.bos_id,
        carried=carried,
    )
    shared: dict[str, Any] = {
        "code": versions_of(assemble.CODE_VERSION, "zstandard", "pyarrow"),
        "after.mix": digest_in(mix_folder),
        "seed": recipe.seed,
        "after.tokenizer": [tokenizer.sha256, tokenizer.vocab_size, tokenizer.eos_id],
    }
    compression = properties.compression
    shared["shards.zstd_level" if isinstance(compression, int) else "shards.compression"] = compression
    if tokenizer.bos_id is not None:
        shared["tokenizer.bos"] = tokenizer.bos_id
    if carried:
        shared["carry"] = [column.model_dump() for column in carried]
    tokens_a_shard = (mixed.train_tokens + recipe.split.val_tokens) // max(1, len(mixed.shards))
    shard_bytes = tokens_a_shard * np.dtype(runs.runs[0].dtype).itemsize
    tasks: list[Task] = []
    documents = sum(source.documents for source in mixed.sources) // max(1, len(mixed.shards))
    encoded = sum(run.num_documents for run in runs.runs)
    carried_bytes = sum(run.carried_bytes for run in runs.runs) * documents // max(1, encoded) if carried else 0
    groups = group_assembled_shards(
        mixed.shards,
        runs=len(runs.runs),
        shard_bytes=shard_bytes,
        shard_documents=documents,
        carried_bytes=carried_bytes,
    )
    for shards in groups:
        payload = assemble.AssembleTask(
            shards,
            runs.address,
            str(mix_folder),
            tuple(source.name for source in recipe.sources),
            recipe.seed,
            properties,
            fetch=running.driver.work.folder is None,
        )
        own = {"split": shards[0].split, "shards": [shard.index for shard in shards]}
        ends = [shard_name(cast("Split", shard.split), shard.index) for shard in shards]
        name = ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"
        tasks.append(make_task(shared | {NUMBER: own}, payload, shard_bytes * len(shards), name))

    def prepare(pending: list[Task]) -> None:
        write_run_list(runs, pending)
        if pending:
            link_shards(running, tasks)
        clear_output(running.out, mixed.shards, whole=not pending)

    if running.dry_run:
        linked = {task.digest for task in find_linked(running, tasks)}
        tasks = [task for task in tasks if task.digest not in linked]
    else:
        put_back(running, tasks)
    result = running.run_stage(
        "assemble",
        "pipeline.assemble.assemble:assemble_shards",
        tasks,
        running.out,
        before=prepare,
    )
    return [ShardEntry.model_validate(entry) for item in result.results for entry in item["entries"]]
