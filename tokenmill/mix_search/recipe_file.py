"""The data recipe with the found weights: the file that the search began with, comments and all, ready for a build."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import tomlkit
from tomlkit.items import Table

from pipeline.recipe import paths
from pipeline.recipe.raw_tables import list_path_keys, named_tables
from shards.stores.files import write_text
from shards.terminal.shipped_recipes import find_recipe
from tokenmill.experiments.arms import locate_recipe
from tokenmill.mix_search.search import MixSearch
from tokenmill.mix_search.space import LEAST_WEIGHT


def write_found_recipe(search: MixSearch, file: Path) -> Path:
    """Write the data recipe with the found weights, for the tokens of the real run.

    Args:
        search: the search, which has run.
        file: the file to write; paths in it begin at its folder.
    """
    document = tomlkit.parse(
        find_recipe(locate_recipe(search.file, search.config.data), paths.SHIPPED).read_text(encoding="utf-8")
    )
    tables = cast("dict[str, Any]", document)
    # Paths begin at the new file's folder.
    for table, key in list_path_keys(tables):
        if key in table:
            moved = paths.move_path_value(_plain(table[key]), old=search.recipe.folder, new=file.parent)
            table[key] = moved
    weights = search.space.weights(search.winner)
    for _, table in named_tables(tables, "sources"):
        weight = tomlkit.item(weights[table["name"]])
        note = "found: 0; the least that a recipe can say" if weight <= LEAST_WEIGHT else "percent, found by mix-search"
        # An inline table has no room for a comment.
        table["weight"] = weight.comment(note) if isinstance(table, Table) else weight
    # The tokens of the real run, which repeats what it lacks.
    mix = tables.setdefault("mix", tomlkit.table())
    mix["tokens"] = tomlkit.item(search.target).comment("of the real run, which the small models stand for")
    if any((size.tokens or search.target) < weights[name] / 100 * search.target for name, size in search.sizes.items()):
        mix["when_short"] = "repeat"
    write_text(file, tomlkit.dumps(document))
    return file


def _plain(value: Any) -> Any:
    """Return a value of a document without its layout."""
    return value.unwrap() if hasattr(value, "unwrap") else value
