"""The stage that decides which document goes to which shard; encoding again while a source is short and has more."""

from __future__ import annotations

from functools import partial
from typing import Any

from pipeline.builder.last_mix import note_mix
from pipeline.builder.mix_alarms import check_contamination_alarm, check_mix_alarms, check_near_duplicates
from pipeline.builder.running_build import RunningBuild
from pipeline.builder.stages.encode import run_encode
from pipeline.builder.stages.fetch import run_fetch
from pipeline.builder.stages.near_duplicates import run_near_duplicates
from pipeline.builder.stages.source_identity import identify_limits
from pipeline.clean.limits import CleaningError
from pipeline.encode.run import RunList
from pipeline.engine.receipts import WorkFileDamagedError
from pipeline.engine.tasks import Task, digest_in, make_task
from pipeline.mix import cleaning, drop_counts
from pipeline.mix import cuts as mix
from pipeline.mix.block_lists import open_lists
from pipeline.mix.mix_plan import MixPlan, plan_from_dict
from pipeline.mix.near_duplicates.drop import SimilarPairs
from pipeline.recipe.schema import Recipe
from pipeline.tokenizer.encoder import TokenizerInfo
from shards.errors import plural
from shards.stores.store import WritableStore
from shards.terminal.command_names import called_as


def run_encode_and_mix(
    running: RunningBuild, recipe: Recipe, tokenizer: TokenizerInfo, evaluations: WritableStore | None
) -> tuple[RunList, list[dict[str, Any]], MixPlan, WritableStore]:
    """Encode, and run the mix stage; while it needs more of a source that has more, take more, and run both again.

    Returns:
        The runs in unit order, the result of encoding each, the plan, and the mix task's folder.
    """
    while True:
        own, encoded = run_encode(running, recipe, tokenizer, evaluations)
        runs = RunList(running.work.child("encode"), own)
        running.used["encode"].add(runs.name)
        similar = run_near_duplicates(running, recipe, tokenizer, runs, partial(write_run_list, runs))
        planned, folder = run_mix(running, recipe, runs, tokenizer, similar, evaluations)
        if planned is not None:
            for selection in running.selections:
                if selection.has_more:
                    running.note(
                        f"{selection.source.name}: read in part, as mix.tokens asks; not read: {selection.unread()}"
                    )
            return runs, encoded, planned, folder
        running.units = [selection.units for selection in running.selections]
        run_fetch(running, recipe)


def run_mix(
    running: RunningBuild,
    recipe: Recipe,
    runs: RunList,
    tokenizer: TokenizerInfo,
    similar: SimilarPairs | None,
    evaluations: WritableStore | None,
) -> tuple[MixPlan | None, WritableStore]:
    """Run the mix stage: decide which documents go to which shard; return the plan and the folder of the task.

    If a source is too short and has more, the plan is None, and more of the source has been taken.

    Raises:
        CleaningError: a preset, or near-duplicates, drop more of a source than the recipe allows.
        MixError: the sources cannot give what the recipe asks for.
    """
    has_more = tuple(selection.has_more for selection in running.selections)
    identity: dict[str, Any] = {
        "code": {"tokenmill": [mix.CODE_VERSION]},
        "after.encode": [[run.source, run.digest] for run in runs.runs],
        "after.selection": has_more,
        "sources": [source.name for source in recipe.sources],
        "mix": recipe.mix.model_dump(),
        "split.val_tokens": recipe.split.val_tokens,
        "shards.tokens": recipe.shards.tokens,
    }
    for source in recipe.sources:
        identity[f"sources.{source.name}.weight"] = source.weight
    if recipe.drop_hashes:
        identity["drop_hashes"] = recipe.drop_hashes  # with each file's SHA-256
    cleaned = cleaning.cleaned_when_mixed(recipe.sources)
    if cleaned:
        identity["code"]["tokenmill"].append(cleaning.CODE_VERSION)
        for source in recipe.sources:
            identity[f"sources.{source.name}.clean"] = identify_limits(source, "mix")
    if similar is not None:
        identity["clean.near_duplicates"] = similar.identity()
    if evaluations:
        identity["after.evaluations"] = digest_in(evaluations)
        for evaluation in recipe.evaluations:
            identity[f"evaluations.{evaluation.name}.action"] = evaluation.action
    payload = mix.MixTask(
        recipe,
        tuple(open_lists(recipe)),
        runs.address,
        has_more,
        fetch=running.driver.work.folder is None,
        similar=similar,
        evaluations=str(evaluations) if evaluations else None,
    )
    if payload.cleans:
        identity["code"]["steps"] = drop_counts.CODE_VERSION
    task = make_task(identity, payload, 0, recipe.name)
    before = partial(write_run_list, runs)
    result = running.run_stage("mix", "pipeline.mix.cuts:mix_runs", [task], before=before).results[0]
    folder = running.work.child("mix").child(task.digest)
    if not running.dry_run:
        note_mix(running, task.digest, recipe, runs, tokenizer, evaluations)
    if cleaned:
        _check_cleaning(running, recipe, runs, tokenizer, folder)
    if evaluations:
        check_contamination_alarm(recipe, result["contamination"], str(running.work))
    if "near_duplicates" in result:
        check_near_duplicates(running, recipe, tokenizer, runs, result["near_duplicates"], note="plan" in result)
    if "fault" in result:
        raise mix.MixError(result["fault"])
    for source, needed, found in result["short"]:
        selection = running.selections[int(source)]
        running.say(f"{selection.source.name}: {found:,} of {plural(needed, 'token')} so far; taking more of it")
        selection.take_for(needed, found)
    if result["short"]:
        return None, folder
    planned = plan_from_dict(result["plan"])
    for note in planned.notes:
        running.note(f"mix: {note}")
    return planned, folder


def _check_cleaning(
    running: RunningBuild, recipe: Recipe, runs: RunList, tokenizer: TokenizerInfo, folder: WritableStore
) -> None:
    """Stop the build if a preset drops too much in a mix.

    Raises:
        CleaningError: with counts and documents.
    """
    text = tokenizer.text.encode()

    def check() -> None:
        try:
            check_mix_alarms(recipe, cleaning.read_cleaning(folder), runs.runs, text)
        except WorkFileDamagedError:
            runs.write()  # a mix task that is repaired reads it
            raise

    try:
        running.driver.read(check)
    except CleaningError as error:
        command = f"{called_as('pipeline', 'clean-report')} {running.work}"
        raise CleaningError(f"{error}\n`{command}` shows what falls at each limit.") from None


def write_run_list(runs: RunList, pending: list[Task]) -> None:
    """Write the list of the runs for the mix stage if a task will run: one that is repaired later needs it too."""
    if pending:
        runs.write()
