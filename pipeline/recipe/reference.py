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
from shards.errors import InputError
from shards.terminal.key_tables import KeyTables, field_docs, find_section

BEGIN = "<!-- keys of the data recipe: written by `python -m pipeline keys --into recipes/README.md` -->"
END = "<!-- end of the keys of the data recipe -->"

_TABLES = KeyTables(converters={parse_size: "bytes", parse_count: "count"}, name=Name)


class MarkerError(InputError):
    """A file has no place for the tables."""


def reference_markdown() -> str:
    """Return the tables of all keys of a data recipe."""
    parts = [_TABLES.table(Recipe, [name for name in Recipe.model_fields if find_section(Recipe, name) is None])]
    docs = field_docs(Recipe)
    for name in Recipe.model_fields:
        section = find_section(Recipe, name)
        if section is not None:
            model, many = section
            title = f"`[[{name}]]`" if many else f"`[{name}]`"
            required = " Required." if Recipe.model_fields[name].is_required() else ""
            about = " ".join(filter(None, [inspect.cleandoc(model.__doc__ or ""), docs.get(name)]))
            parts.append(f"{title}: {about[0].lower()}{about[1:]}{required}\n\n{_TABLES.table(model)}")
            if model is MixRecipe:
                about = inspect.cleandoc(PhaseRecipe.__doc__ or "")
                fields = list(PhaseRecipe.model_fields)
                parts.append(f"`[[mix.phases]]`: {about[0].lower()}{about[1:]}\n\n{_TABLES.table(PhaseRecipe, fields)}")
            if model is CleanAllRecipe:
                parts += _preset_tables()
    return "\n\n".join(parts)


def _preset_tables() -> list[str]:
    """Return the keys that every preset has, the limits of each, and the keys of each filter."""
    keys = _TABLES.table(Preset, list(Preset.model_fields))
    parts = [f"`[clean.PRESET]`, and `[sources.clean.PRESET]` for one source: the keys of every preset.\n\n{keys}"]
    for name, preset in PRESETS.items():
        about = inspect.cleandoc(preset.__doc__ or "")
        parts.append(f"`[clean.{name}]`: {about[0].lower()}{about[1:]}\n\n{_TABLES.table(preset, preset.limit_keys())}")
    for name, model in FILTERS.items():
        about = inspect.cleandoc(model.__doc__ or "")
        parts.append(f"`[clean.{name}]`: {about[0].lower()}{about[1:]}\n\n{_TABLES.table(model, model.ordered_keys())}")
    about = " ".join(inspect.cleandoc(NearDuplicatesRecipe.__doc__ or "").split())
    fields = list(NearDuplicatesRecipe.model_fields)
    parts.append(
        f"`[clean.near_duplicates]`: {about[0].lower()}{about[1:]}\n\n{_TABLES.table(NearDuplicatesRecipe, fields)}"
    )
    return parts


def write_reference_into(path: Path) -> bool:
    """Put the tables between the markers of a file; return whether that changed it.

    Raises:
        MarkerError: the file lacks a marker.
    """
    text = path.read_text(encoding="utf-8")
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise MarkerError(f"{path}: lacks the lines {BEGIN!r} and {END!r}. Put them where the tables belong.")
    updated = f"{text[: begin + len(BEGIN)]}\n\n{reference_markdown()}\n\n{text[end:]}"
    if updated != text:
        path.write_text(updated, encoding="utf-8")
    return updated != text
