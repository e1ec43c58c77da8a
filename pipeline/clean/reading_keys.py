"""The keys of a source that decide its documents, and the spans of its files: for the digests of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pipeline.clean.steps import identify_steps
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import Span, spans_to_json


def files_by_name(spans: Sequence[Sequence[Span]], names: Sequence[str]) -> dict[str, Any]:
    """Return what determines the content of the spans of several sources, by their names."""
    return {name: {"files": spans_to_json(own)} for name, own in zip(names, spans, strict=True)}


def reading_keys(source: SourceRecipe, _payload: Any = None) -> dict[str, Any]:
    """Return the keys of a source that determine the documents of given spans: not its name, weight, `take`
    or paths."""
    elsewhere = {*source.place_keys, "weight", "take", "name", "license", "clean"}
    elsewhere |= {"max_missing", "max_dropped", "max_malformed", "max_null"}
    reading = source.model_dump(exclude=elsewhere)
    # A key that is not set leaves the digest as it was before there was such a key.
    return {key: value for key, value in reading.items() if value not in (None, [])} | identify_steps(source)


def limits_by_preset(source: SourceRecipe, when: Literal["mix", "encode"]) -> dict[str, Any]:
    """Return the limits of a source's presets that are applied at `when`, by preset, in order."""
    return {preset.name: {limit.key: limit.value for limit in preset.limits()} for preset in source.clean.presets(when)}
