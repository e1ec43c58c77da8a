"""The identity of a source in the digests of stages: the keys that decide its documents."""

from __future__ import annotations

from typing import Any, Literal

from pipeline.clean.filters import identify_filter
from pipeline.clean.measures import measure
from pipeline.recipe.schema import SourceRecipe


def identify_source(source: SourceRecipe) -> dict[str, Any]:
    """Return the keys of a source that determine the documents of given spans: not its name, weight or paths.

    Of presets with `when = "mix"` only the measures count: their limits are applied later.
    """
    elsewhere = source.place_keys() | {"weight", "name", "license", "clean", "carry"}
    elsewhere |= {"max_missing", "max_dropped", "max_malformed", "max_null"}
    unused: set[str] = set() if source.drop_if_matches else {"drop_if_matches"}  # earlier digests stay valid
    reading = source.model_dump(exclude=elsewhere | unused)
    if source.clean.presets():
        reading["clean"] = identify_limits(source, "encode") | {
            "code": measure.CODE_VERSION,
            "measures": source.clean.mix_measures(),
        }
    if filters := source.clean.filters():
        reading["filters"] = [identify_filter(table) for table in filters]
    return reading


def identify_limits(source: SourceRecipe, when: Literal["mix", "encode"]) -> dict[str, Any]:
    """Return the limits of a source's presets that are applied at `when`, by preset, in order."""
    return {preset.name: {limit.key: limit.value for limit in preset.limits()} for preset in source.clean.presets(when)}
