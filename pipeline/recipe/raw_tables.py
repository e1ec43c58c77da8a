"""A recipe as it was read, before its model has seen it: tables and lists that may have any shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from pipeline.recipe.sources import SourceRecipe
from shards.config import item_names


def table_of(value: Any) -> dict[str, Any]:
    """Return a value that is a table; an empty table for any other."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Return a value that is a list; an empty list for any other."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def named_tables(data: dict[str, Any], key: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the tables of a key such as `sources` or `mix.phases`, with places such as `sources.prose`."""
    value: Any = data
    for part in key.split("."):
        value = table_of(value).get(part)
    items = list_of(value)
    named = zip(item_names(items), items, strict=True)
    return [(f"{key}.{name}", table_of(item)) for name, item in named if isinstance(item, dict)]


def list_clean(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each `clean` table of a recipe, with its place in messages."""
    for place, table in [("", data), *named_tables(data, "sources")]:
        if isinstance(table.get("clean"), dict):
            yield f"{place}.clean".lstrip("."), table_of(table["clean"])


def list_path_keys(data: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each table of a recipe that may name paths, with the key that names them."""
    for _, table in named_tables(data, "sources"):
        for key in SourceRecipe.kind_of(table).path_keys:
            yield table, key
    for _, table in named_tables(data, "evaluations"):
        yield table, "paths"
    yield table_of(data.get("tokenizer")), "file"
    yield data, "drop_hashes"
    for _, clean in list_clean(data):
        yield table_of(clean.get("language")), "model"
