"""The data recipe with the found weights, ready for a build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shards.stores.files import write_text
from tokenmill.mix_search.search import MixSearch


def write_found_recipe(search: MixSearch, file: Path) -> Path:
    """Write the data recipe with the found weights, for the tokens of the real run, as JSON.

    It has every key, and paths that any working directory finds.
    """
    weights = search.space.weights(search.winner)
    sources = [source.model_copy(update={"weight": weights[source.name]}) for source in search.recipe.sources]
    mix: dict[str, Any] = {"tokens": search.target}
    # The real run repeats what it lacks.
    if any((size.tokens or search.target) < weights[name] / 100 * search.target for name, size in search.sizes.items()):
        mix["when_short"] = "repeat"
    changes = {"sources": sources, "mix": search.recipe.mix.model_copy(update=mix)}
    write_text(file, search.recipe.model_copy(update=changes).to_json(as_written=False))
    return file
