"""The tables of a data recipe's keys as Markdown, from the schema.

recipes/README.md holds them between two markers; a test fails when they are stale.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from pipeline.recipe.clean_recipe import CleanAllRecipe, NearDuplicatesRecipe
from pipeline.recipe.filters import FILTERS
from pipeline.recipe.key_values import Name, parse_count, parse_size
from pipeline.recipe.presets import PRESETS, Preset
from pipeline.recipe.schema import MixRecipe, PhaseRecipe, Recipe
from shards.config import Settings
from shards.terminal.key_tables import KeyTables, field_docs, find_section, write_between

BEGIN = "<!-- keys of the data recipe: written by `python -m pipeline keys --into recipes/README.md` -->"
END = "<!-- end of the keys of the data recipe -->"

_TABLES = KeyTables(converters={parse_size: "bytes", parse_count: "count"}, name=Name)


def reference_markdown() -> str:
    """Return the tables of all keys of a data recipe."""
    docs = field_docs(Recipe)
    parts = [_TABLES.table(Recipe, [name for name in Recipe.model_fields if find_section(Recipe, name) is None])]
    for name, field in Recipe.model_fields.items():
        if (section := find_section(Recipe, name)) is None:
            continue
        model, many = section
        required = "Required." if field.is_required() else ""
        parts.append(_describe(f"[[{name}]]" if many else f"[{name}]", model, docs.get(name, ""), required))
        # Tables within tables follow the table that holds them.
        if model is MixRecipe:
            parts.append(_describe("[[mix.phases]]", PhaseRecipe))
        if model is CleanAllRecipe:
            keys = _TABLES.table(Preset)
            parts.append(
                f"`[clean.PRESET]`, and `[sources.clean.PRESET]` for one source: the keys of every preset.\n\n{keys}"
            )
            parts += [_describe(f"[clean.{key}]", one, keys=one.limit_keys()) for key, one in PRESETS.items()]
            parts += [_describe(f"[clean.{key}]", one, keys=one.ordered_keys()) for key, one in FILTERS.items()]
            parts.append(_describe("[clean.near_duplicates]", NearDuplicatesRecipe))
    return "\n\n".join(parts)


def _describe(title: str, model: type[Settings], *more: str, keys: list[str] | None = None) -> str:
    """Return the table of a model's keys under its title, its docstring and more sentences."""
    about = " ".join(filter(None, [*inspect.cleandoc(model.__doc__ or "").split("\n"), *more]))
    return f"`{title}`: {about[0].lower()}{about[1:]}\n\n{_TABLES.table(model, keys)}"


def write_reference_into(path: Path) -> bool:
    """Put the tables between the markers of a file; return whether that changed it.

    Raises:
        InputError: the file lacks a marker.
    """
    return write_between(path, BEGIN, END, reference_markdown())
