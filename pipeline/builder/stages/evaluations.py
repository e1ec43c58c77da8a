"""The stage that reads the items of evaluation sets."""

from pipeline.builder.running_build import RunningBuild
from pipeline.clean.decontamination import items
from pipeline.engine.tasks import make_task
from shards.errors import plural


def run_evaluations(build: RunningBuild) -> None:
    """Run the stage that reads the items of evaluation sets, if the recipe names any.

    Raises:
        SourceError: a file cannot be read as the recipe says, or a set holds no item.
    """
    if not build.recipe.evaluations:
        return
    payload = items.make_items_task(build.recipe)
    size = sum(span.text_bytes for own in payload.spans.values() for span in own)
    task = make_task(payload, size)
    stage = build.run_stage("evaluations", items.read_items, [task])
    for counts in stage.results[task.digest].evaluations:
        if counts.left_out:
            build.note(
                f"evaluation set {counts.name!r}: {counts.left_out:,} of {plural(counts.items, 'item')} not searched "
                f"for: empty, or shorter than {items.LEAST_WORDS} words"
            )
    build.evaluations = build.folder_of("evaluations", task)
