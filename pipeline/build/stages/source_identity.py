"""The identity of a source in the digests of stages: the keys that decide its documents."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from pipeline.clean.filters import identify_filter
from pipeline.clean.measures import measure
from pipeline.recipe.schema import SourceRecipe


def identify_source(source: SourceRecipe) -> dict[str, Any]:
    """Return the keys of a source that determine the documents of given spans: not its name, weight or paths.

    Of presets with `when = "mix"` only the measures count: their limits are applied later.
    """
    elsewhere = {"weight", "name", "license", "paths", "repo", "config", "split", "revision"}
    elsewhere |= {"max_missing", "max_dropped", "max_malformed", "max_null", "clean", "carry"}
    unused: set[str] = set() if source.drop_if_matches else {"drop_if_matches"}  # earlier digests stay valid
    reading = source.model_dump(exclude=elsewhere | unused)
    if source.clean.presets():
        limits = [astuple(limit) for limit in source.clean.limits("encode")]
        reading["clean"] = [measure.CODE_VERSION, limits, source.clean.mix_measures()]
    if filters := source.clean.filters():
        reading["filters"] = [identify_filter(table) for table in filters]
    return reading
