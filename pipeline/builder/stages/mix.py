"""The stage that decides which document goes to which shard, and has more units encoded while a source is short."""

from pipeline.builder.alarms import check_mixed, note_drops
from pipeline.builder.running_build import RunningBuild
from pipeline.builder.stages.encode import run_encode
from pipeline.builder.stages.fetch import run_fetch
from pipeline.builder.stages.near_duplicates import run_near_duplicates
from pipeline.engine.tasks import make_task
from pipeline.mix import cuts as mix
from shards.errors import InputError, plural


def run_encode_and_mix(build: RunningBuild) -> None:
    """Encode, and run the mix stage; while it needs more of a source that has more, take more, and run both again."""
    while True:
        run_encode(build)
        run_near_duplicates(build)
        if run_mix(build):
            break
        build.units = [selection.units for selection in build.selections]
        run_fetch(build)
    for selection in build.selections:
        if selection.has_more:
            build.note(f"{selection.source.name}: read in part, as mix.tokens asks; not read: {selection.unread()}")


def run_mix(build: RunningBuild) -> bool:
    """Run the mix stage: decide which documents go to which shard.

    Returns:
        Whether there is a plan. If not, a source was too short, and more of it has been taken.

    Raises:
        InputError: a step drops more of a source than the recipe allows.
        InputError: the sources cannot give what the recipe asks for.
    """
    recipe, evaluations = build.recipe, build.evaluations
    build.has_more = tuple(selection.has_more for selection in build.selections)
    payload = mix.MixTask(
        recipe,
        build.run_list.address,
        build.has_more,
        fetch=build.work.folder is None,
        similar=build.similar,
        evaluations=str(evaluations) if evaluations else None,
    )
    task = make_task(payload, 0, recipe.name)
    build.mix = build.folder_of("mix", task)
    stage = build.run_stage("mix", mix.mix_runs, [task])
    if not build.dry_run:
        build.store()

    # Stop if it drops too much, or if the sources are too small.
    result = stage.results[task.digest]
    build.drops = [own.after(tally.drops) for own, tally in zip(result.drops, build.tallies, strict=True)]
    check_mixed(build)
    if result.fault:
        raise InputError(result.fault)

    # Take more of the sources that are too short so far.
    for source, needed, found in result.short:
        selection = build.selections[source]
        build.say(f"{selection.source.name}: {found:,} of {plural(needed, 'token')} so far; reading more of it")
        selection.take_for(needed, found)
    if result.plan is None:
        return False
    note_drops(build)
    if not recipe.split.val_tokens:
        build.say("mix: no validation split (split.val_tokens = 0), which `tokenmill train` needs")
    build.plan = result.plan
    for note in build.plan.notes:
        build.note(f"mix: {note}")
    return True
