"""The stage that reads the items of evaluation sets."""

from __future__ import annotations

from typing import Any

from pipeline.builder.running_build import RunningBuild
from pipeline.builder.stages.source_identity import identify_source
from pipeline.clean.evaluations import items
from pipeline.clean.evaluations.normal_form import UNICODE_VERSION
from pipeline.engine.tasks import JsonText, make_task, versions_of
from pipeline.sources.base import spans_to_json
from shards.errors import plural


def run_evaluations(build: RunningBuild) -> None:
    """Run the stage that reads the items of evaluation sets, if the recipe names any.

    Raises:
        SourceError: a file cannot be read as the recipe says, or a set holds no item.
    """
    if not build.recipe.evaluations:
        build.used["evaluations"] = set()
        return
    payload = items.make_items_task(build.recipe)
    identity: dict[str, Any] = {
        "code": versions_of(items.CODE_VERSION, "pyarrow") | {"Unicode": UNICODE_VERSION},
        "evaluations": [one.name for one in payload.evaluations],
    }
    for one, spans in zip(payload.evaluations, payload.spans, strict=True):
        identity[f"evaluations.{one.name}"] = identify_source(items.source_of(one, payload.folder))
        identity[f"evaluations.{one.name}.files"] = JsonText(spans_to_json(spans))
    size = sum(span.text_bytes for own in payload.spans for span in own)
    task = make_task(identity, payload, size)
    stage = build.run_stage("evaluations", "pipeline.clean.evaluations.items:read_items", [task])
    for counts in stage.results[0]["evaluations"]:
        if left_out := counts["too_short"] + sum(counts["dropped"].values()):
            build.note(
                f"evaluation set {counts['name']!r}: {left_out:,} of {plural(counts['items'], 'item')} not searched "
                f"for: empty, or shorter than {items.LEAST_WORDS} words"
            )
    build.evaluations = build.folder_of("evaluations", task)
