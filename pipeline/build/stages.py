"""The stages of a build. Each function makes its stage's tasks, runs those that are missing, and returns the results.

A task's digest covers everything that determines its result: its part of the recipe, its inputs' digests, the
tokenizer's bytes, and the versions of our code and of the libraries that matter.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from functools import partial
from importlib.metadata import version
from typing import Any, cast, get_args

import numpy as np

from pipeline import assemble
from pipeline.build.alarms import check_contamination, check_mixed, read_cleaning
from pipeline.build.context import BuildContext
from pipeline.build.last_mix import note_mix
from pipeline.build.near_duplicates import check_near_duplicates, find_similar_pairs
from pipeline.build.publish import clear_output
from pipeline.clean.evaluations import items
from pipeline.clean.filters import check_filtered, identity_of
from pipeline.clean.limits import CleaningError, check_encoded
from pipeline.clean.malformed import check_malformed
from pipeline.clean.measures import measure
from pipeline.clean.patterns import check_matches
from pipeline.encode import encode
from pipeline.encode.run import Run, RunList, token_dtype
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.receipts import RECEIPT_FILE, WorkFileDamagedError
from pipeline.engine.tasks import JsonText, Task, digest_of
from pipeline.estimate import disk
from pipeline.mix import cleaning, steps
from pipeline.mix import cuts as mix
from pipeline.mix.block_lists import open_lists
from pipeline.mix.near_duplicates.drop import SimilarPairs
from pipeline.mix.plan import MixPlan, ShardPlan, plan_from_dict
from pipeline.recipe.schema import Recipe, SourceRecipe
from pipeline.sources.base import Unit, spans_to_json
from pipeline.sources.selection import merge_carried
from pipeline.tokenizer.encoder import TokenizerInfo, describe_slow_encoder
from pipeline.tokenizer.kept import add_up, check_unknown, describe_kept
from shards.format.compression import LEVEL_BEFORE, Compression, CompressionName, describe
from shards.format.manifest import ShardEntry, Split
from shards.format.writer import SetProperties, shard_name
from shards.stores.files import check_room
from shards.stores.store import WritableStore, require_folder
from shards.terminal.display import plural
from shards.terminal.program import called_as


def run_fetch(context: BuildContext, recipe: Recipe) -> None:
    """Fetch the files that a source's rows name; afterwards its units read local documents.

    The digests do not include the archive's address or the number of connections: SHA-1 identifies each file.

    Raises:
        SourceError: more files are missing than `max_missing` allows. The files fetched so far are kept.
    """
    if not needs_fetch(recipe):
        context.used["fetch"] = set()
        return
    folder = require_folder(context.work) / "fetch"
    from pipeline.sources.software_heritage import (
        fetch,  # with the clients of the network, which most builds do without
    )

    by_source = {
        index: [fetch.make_task(unit, source, folder) for unit in context.units[index]]
        for index, source in enumerate(recipe.sources)
        if source.content != "column"
    }
    for index, tasks in by_source.items():
        fetch.ask_again(recipe.sources[index], folder, tasks)
    # Two sources may read the same rows in the same way.
    distinct = list({task.digest: task for tasks in by_source.values() for task in tasks}.values())

    def check_disk(pending: list[Task]) -> None:
        scratch_bytes = int(sum(task.payload.unit.text_bytes for task in pending) * disk.FETCH_SCRATCH_SHARE)
        check_room([("fetched files", folder, scratch_bytes)], disk.REMEDY)

    function = "pipeline.sources.software_heritage.fetch:fetch_unit"
    results = context.run_stage("fetch", function, distinct, unit="files", before=check_disk).results
    fetch.delete_journals(folder)
    by_digest = {task.digest: result for task, result in zip(distinct, results, strict=True)}
    for index, tasks in by_source.items():
        fetch.check_missing(recipe.sources[index], [by_digest[task.digest] for task in tasks])
        context.units[index] = [
            fetch.local_unit(task.payload.unit, folder / task.digest, by_digest[task.digest]) for task in tasks
        ]


def run_evaluations(context: BuildContext, recipe: Recipe) -> WritableStore | None:
    """Read the items of the recipe's evaluation sets; return the folder of the task, or None if there are none.

    Raises:
        SourceError: a file cannot be read as the recipe says, or a set holds no item.
    """
    if not recipe.evaluations:
        context.used["evaluations"] = set()
        return None
    payload = items.make_task(recipe)
    identity = {
        "code": [items.CODE_VERSION, version("pyarrow")],
        "evaluations": [
            [one.name, reading_of(items.source_of(one, payload.folder)), JsonText(spans_to_json(spans))]
            for one, spans in zip(payload.evaluations, payload.spans, strict=True)
        ],
    }
    size = sum(span.text_bytes for own in payload.spans for span in own)
    task = Task(digest_of(identity), payload, size)
    stage = context.run_stage("evaluations", "pipeline.clean.evaluations.items:read_items", [task])
    for counts in stage.results[0]["evaluations"]:
        if left_out := counts["too_short"] + sum(counts["dropped"].values()):
            context.note(
                f"evaluation set {counts['name']!r}: {left_out:,} of {plural(counts['items'], 'item')} not looked for: "
                f"empty, or shorter than {items.LEAST_WORDS} words"
            )
    return context.work.child("evaluations").child(task.digest)


def needs_fetch(recipe: Recipe) -> bool:
    """Return whether rows of a source only name their text."""
    return any(source.content != "column" for source in recipe.sources)


def run_encode(
    context: BuildContext, recipe: Recipe, tokenizer: TokenizerInfo, evaluations: WritableStore | None
) -> tuple[list[Run], list[dict[str, Any]]]:
    """Encode every unit; return the runs in unit order, and the result of encoding each."""
    dtype = token_dtype(tokenizer.vocab_size)
    libraries = [version(name) for name in ("gigatoken", "pyarrow", "xxhash")]
    special_tokens = tuple(tokenizer.special_tokens.items())
    tasks: list[Task] = []
    for own, source, selection in zip(context.units, recipe.sources, context.selections, strict=True):
        for unit in own:
            payload = encode.EncodeTask(
                unit,
                source.located(),
                tokenizer.path,
                tokenizer.sha256,
                special_tokens,
                tokenizer.eos_id,
                dtype,
                tokenizer.task,
                str(evaluations) if evaluations else None,
                tokenizer.bos_id,
                selection.carried,
            )
            identity: dict[str, Any] = {
                "code": [encode.CODE_VERSION, *libraries],
                "source": reading_of(source),
                "spans": JsonText(spans_to_json(unit.spans)),
                "tokenizer": [tokenizer.sha256, tokenizer.eos_id],
            }
            if tokenizer.bos_id is not None:
                identity["bos"] = tokenizer.bos_id
            if evaluations:
                identity["evaluations"] = _digest_in(evaluations)
            if payload.carried:
                identity["carried"] = payload.carried
            tasks.append(Task(digest_of(identity), payload, unit.text_bytes, _name_unit(source, unit)))

    def check_disk(pending: list[Task]) -> None:
        left = {task.digest for task in pending}
        if done := sum(task.digest not in left for task in tasks):
            context.say(f"encode: {done} of {len(tasks)} units were already encoded")
        context.check_disk(recipe, [task.payload.unit for task in pending])
        if pending:
            prepare_measures(context, recipe)

    # Two sources may read the same files in the same way, and then share a run.
    distinct = list({task.digest: task for task in tasks}.values())
    results = context.run_stage("encode", "pipeline.encode.encode:encode_unit", distinct, before=check_disk).results
    if why := next((result["slow_encoder"] for result in results if result.get("slow_encoder")), ""):
        context.driver.progress.note_once(describe_slow_encoder(why))
    by_digest = {task.digest: result for task, result in zip(distinct, results, strict=True)}
    encoded = [by_digest[task.digest] for task in tasks]
    folder = context.work.child("encode")
    runs = [
        Run(str(folder.child(task.digest)), task.payload.unit.source, dtype, result)
        for task, result in zip(tasks, encoded, strict=True)
    ]
    for index, source in enumerate(recipe.sources):
        own = [done for run, done in zip(runs, encoded, strict=True) if run.source == index]
        if dropped := check_malformed(source, own):
            context.driver.progress.note_once(dropped)
        check_matches(source, own)
        check_encoded(source, own)
        if edited := check_filtered(source, own):
            context.driver.progress.note_once(edited)
        if kept := add_up(own):
            context.driver.progress.note_once(describe_kept(source.name, kept))
            check_unknown(source.name, kept, recipe.tokenizer.max_unknown)
    _check_sources_left(context, recipe, runs, encoded)
    return runs, encoded


def prepare_measures(context: BuildContext, recipe: Recipe) -> None:
    """Compile the measures of presets before worker processes of this machine would each do so at the same time."""
    if isinstance(context.driver.executor, LocalExecutor) and any(source.clean.presets() for source in recipe.sources):
        measure.compile_measures(context.say)


def _check_sources_left(context: BuildContext, recipe: Recipe, runs: list[Run], encoded: list[dict[str, Any]]) -> None:
    for index, source in enumerate(recipe.sources):
        if context.selections[index].has_more:
            continue
        own = [result for run, result in zip(runs, encoded, strict=True) if run.source == index]
        if not any(result["documents"] for result in own):
            reasons: Counter[str] = Counter()
            for result in own:
                reasons.update(result["dropped"])
            listed = ", ".join(f"{count} because {reason}" for reason, count in reasons.items()) or "there were none"
            raise mix.MixError(
                f"source {source.name!r}: no document is left ({listed}). Correct `keep`, `text`, "
                "`drop_if_matches`, `clean` or the length bounds."
            )


def run_encode_and_mix(
    context: BuildContext, recipe: Recipe, tokenizer: TokenizerInfo, evaluations: WritableStore | None
) -> tuple[RunList, list[dict[str, Any]], MixPlan, WritableStore]:
    """Encode and mix; while the mix needs more of a source that has more, take more of it, encode and mix again.

    Returns:
        The runs in unit order, the result of encoding each, the plan, and the mix task's folder.
    """
    while True:
        own, encoded = run_encode(context, recipe, tokenizer, evaluations)
        runs = RunList(context.work.child("encode"), own)
        context.used["encode"].add(runs.name)
        similar = find_similar_pairs(context, recipe, tokenizer, runs, partial(_list_runs, runs))
        planned, folder = run_mix(context, recipe, runs, tokenizer, similar, evaluations)
        if planned is not None:
            for selection in context.selections:
                if selection.has_more:
                    context.note(
                        f"{selection.source.name}: read in part, as mix.tokens asks; not read: {selection.unread()}"
                    )
            return runs, encoded, planned, folder
        context.units = [selection.units for selection in context.selections]
        run_fetch(context, recipe)


def run_mix(
    context: BuildContext,
    recipe: Recipe,
    runs: RunList,
    tokenizer: TokenizerInfo,
    similar: SimilarPairs | None,
    evaluations: WritableStore | None,
) -> tuple[MixPlan | None, WritableStore]:
    """Decide which documents go to which shard; return the plan and the folder of the mix task.

    If a source is too short and has more, the plan is None, and more of the source has been taken.

    Raises:
        CleaningError: a preset, or near-duplicates, drop more of a source than the recipe allows.
        MixError: the sources cannot give what the recipe asks for.
    """
    has_more = tuple(selection.has_more for selection in context.selections)
    identity: dict[str, Any] = {
        "code": mix.CODE_VERSION,
        "runs": [[run.source, run.digest] for run in runs.runs],
        "has_more": has_more,
        "sources": [[source.name, source.weight] for source in recipe.sources],
        "mix": recipe.mix.model_dump(),
        "val_tokens": recipe.split.val_tokens,
        "shard_tokens": recipe.shards.tokens,
    }
    if recipe.drop_hashes:
        identity["drop_hashes"] = recipe.drop_hashes  # with each file's SHA-256
    cleaned = cleaning.cleaned_when_mixed(recipe.sources)
    if cleaned:
        limits = [[astuple(limit) for limit in source.clean.limits("mix")] for source in recipe.sources]
        identity["clean"] = [cleaning.CODE_VERSION, limits]
    if similar is not None:
        identity["near_duplicates"] = similar.identity()
    if evaluations:
        identity["evaluations"] = [_digest_in(evaluations), [evaluation.action for evaluation in recipe.evaluations]]
    payload = mix.MixTask(
        recipe,
        tuple(open_lists(recipe)),
        runs.address,
        has_more,
        fetch=context.driver.work.folder is None,
        similar=similar,
        evaluations=str(evaluations) if evaluations else None,
    )
    if payload.cleans:
        identity["steps"] = steps.CODE_VERSION
    task = Task(digest_of(identity), payload, 0, recipe.name)
    before = partial(_list_runs, runs)
    result = context.run_stage("mix", "pipeline.mix.cuts:mix_runs", [task], before=before).results[0]
    folder = context.work.child("mix").child(task.digest)
    note_mix(context, task.digest, recipe, runs, tokenizer, evaluations)
    if cleaned:
        _check_cleaning(context, recipe, runs, tokenizer, folder)
    if evaluations:
        check_contamination(recipe, result["contamination"], str(context.work))
    if "near_duplicates" in result:
        check_near_duplicates(context, recipe, tokenizer, runs, result["near_duplicates"], note="plan" in result)
    if "fault" in result:
        raise mix.MixError(result["fault"])
    for source, needed, found in result["short"]:
        selection = context.selections[int(source)]
        context.say(f"{selection.source.name}: {found:,} of {needed:,} tokens so far; taking more of it")
        selection.take_for(needed, found)
    if result["short"]:
        return None, folder
    planned = plan_from_dict(result["plan"])
    for note in planned.notes:
        context.note(f"mix: {note}")
    return planned, folder


def _check_cleaning(
    context: BuildContext, recipe: Recipe, runs: RunList, tokenizer: TokenizerInfo, folder: WritableStore
) -> None:
    """Stop the build if a preset drops too much in a mix.

    Raises:
        CleaningError: with counts and documents.
    """
    text = tokenizer.text.encode()

    def check() -> None:
        try:
            check_mixed(recipe, read_cleaning(folder), runs.runs, text)
        except WorkFileDamagedError:
            runs.write()  # a mix task that is repaired reads it
            raise

    try:
        context.driver.read(check)
    except CleaningError as error:
        command = f"{called_as('pipeline', 'clean-report')} {context.work}"
        raise CleaningError(f"{error}\n`{command}` shows what falls at each limit.") from None


def run_assemble(
    context: BuildContext,
    recipe: Recipe,
    tokenizer: TokenizerInfo,
    mixed: MixPlan,
    runs: RunList,
    mix_folder: WritableStore,
) -> list[ShardEntry]:
    """Write every missing shard; return all entries in order."""
    carried = tuple(merge_carried(recipe, context.selections))
    properties = SetProperties(
        tokenizer.vocab_size,
        tokenizer.eos_id,
        tokenizer.sha256,
        recipe.shards.chosen_compression,
        bos_id=tokenizer.bos_id,
        carried=carried,
    )
    shared: dict[str, Any] = {
        "code": [assemble.CODE_VERSION, *map(version, ("zstandard", "pyarrow"))],
        "mix": [_digest_in(mix_folder)],
        "seed": recipe.seed,
        "tokenizer": [tokenizer.sha256, tokenizer.vocab_size, tokenizer.eos_id],
    }
    if tokenizer.bos_id is not None:
        shared["bos"] = tokenizer.bos_id
    if carried:
        shared["carried"] = [column.model_dump() for column in carried]

    def digest_with(compression: Compression, shards: tuple[ShardPlan, ...]) -> str:
        key = "zstd_level" if isinstance(compression, int) else "compression"
        own = {key: compression, "split": shards[0].split, "shards": [shard.index for shard in shards]}
        return digest_of(shared | own)

    tokens_a_shard = (mixed.train_tokens + recipe.split.val_tokens) // max(1, len(mixed.shards))
    shard_bytes = tokens_a_shard * np.dtype(runs.runs[0].dtype).itemsize
    tasks: list[Task] = []
    documents = sum(source.documents for source in mixed.sources) // max(1, len(mixed.shards))
    encoded = sum(run.num_documents for run in runs.runs)
    carried_bytes = sum(run.carried_bytes for run in runs.runs) * documents // max(1, encoded) if carried else 0
    groups = assemble.group_shards(
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
            fetch=context.driver.work.folder is None,
        )
        digest = digest_with(properties.compression, shards)
        ends = [shard_name(cast("Split", shard.split), shard.index) for shard in shards]
        name = ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"
        tasks.append(Task(digest, payload, shard_bytes * len(shards), name))

    def prepare(pending: list[Task]) -> None:
        if len(pending) == len(tasks):
            for earlier in (*get_args(CompressionName), LEVEL_BEFORE):
                if context.work.child("assemble").find(f"{digest_with(earlier, groups[0])}/{RECEIPT_FILE}"):
                    now, before = map(describe, (properties.compression, earlier))
                    context.say(f"assemble: writes the shards again, with {now}; they were written with {before}")
        _list_runs(runs, pending)
        clear_output(context.out, mixed.shards, whole=not pending)

    result = context.run_stage(
        "assemble",
        "pipeline.assemble:assemble_shards",
        tasks,
        context.out,
        before=prepare,
    )
    return [ShardEntry.model_validate(entry) for item in result.results for entry in item["entries"]]


def _digest_in(folder: WritableStore) -> str:
    """Return the digest of the task whose folder this is."""
    return str(folder).rpartition("/")[2]


def _list_runs(runs: RunList, pending: list[Task]) -> None:
    """Write the list of runs if a task will run: one that is repaired later needs it too."""
    if pending:
        runs.write()


def _name_unit(source: SourceRecipe, unit: Unit) -> str:
    """Return what a unit reads, for a person: `web: part-7.parquet rg0-12`."""
    first, last = unit.spans[0], unit.spans[-1]
    end = f" to {last.name} {last.part}" if len(unit.spans) > 1 else ""
    return f"{source.name}: {first.name} {first.part}{end}"


def reading_of(source: SourceRecipe) -> dict[str, Any]:
    """Return the keys of a source that determine the documents of given spans: not its name, weight or paths.

    Of presets with `when = "mix"` only the measures count: their limits are applied later.
    """
    elsewhere = {"weight", "name", "license", "paths", "repo", "config", "split", "revision"}
    elsewhere |= {"max_missing", "max_dropped", "max_malformed", "clean", "carry"}
    unused: set[str] = set() if source.drop_if_matches else {"drop_if_matches"}  # earlier digests stay valid
    reading = source.model_dump(exclude=elsewhere | unused)
    if source.clean.presets():
        limits = [astuple(limit) for limit in source.clean.limits("encode")]
        reading["clean"] = [measure.CODE_VERSION, limits, source.clean.mix_measures()]
    if filters := source.clean.filters():
        reading["filters"] = [identity_of(table) for table in filters]
    return reading
