"""Keys: the tables of a recipe's keys as Markdown, from the schema: types, bounds, defaults and docstrings.

recipes/README.md holds them between two markers; a test fails when they are stale. Docstrings are read from the source
when they are asked for: pydantic could collect them, but would do so at every start.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pipeline.recipe.clean_recipe import CleanAllRecipe, CleanRecipe, NearDuplicatesRecipe
from pipeline.recipe.filters import FILTERS
from pipeline.recipe.presets import PRESETS, Preset
from pipeline.recipe.schema import MixRecipe, PhaseRecipe, Recipe
from pipeline.recipe.values import Name, parse_count, parse_size
from shards.config import Settings
from shards.errors import InputError

BEGIN = "<!-- keys of the data recipe: written by `python -m pipeline keys --into recipes/README.md` -->"
END = "<!-- end of the keys of the data recipe -->"

_HEAD = "| key | type | default | meaning |\n|---|---|---|---|"
_SIZES = {10**12: "TB", 10**9: "GB", 10**6: "MB"}


class MarkerError(InputError):
    """A file has no place for the tables."""


def reference_markdown() -> str:
    """Return the tables of all keys of a data recipe."""
    parts = [_table(Recipe, [name for name in Recipe.model_fields if _section(Recipe, name) is None])]
    docs = field_docs(Recipe)
    for name in Recipe.model_fields:
        section = _section(Recipe, name)
        if section is not None:
            model, many = section
            title = f"`[[{name}]]`" if many else f"`[{name}]`"
            required = " Required." if Recipe.model_fields[name].is_required() else ""
            about = " ".join(filter(None, [inspect.cleandoc(model.__doc__ or ""), docs.get(name)]))
            parts.append(
                f"{title}: {about[0].lower()}{about[1:]}{required}\n\n{_table(model, list(model.model_fields))}"
            )
            if model is MixRecipe:
                about = inspect.cleandoc(PhaseRecipe.__doc__ or "")
                fields = list(PhaseRecipe.model_fields)
                parts.append(f"`[[mix.phases]]`: {about[0].lower()}{about[1:]}\n\n{_table(PhaseRecipe, fields)}")
            if model is CleanAllRecipe:
                parts += _preset_tables()
    return "\n\n".join(parts)


def _preset_tables() -> list[str]:
    """Return the keys that every preset has, the limits of each, and the keys of each filter."""
    keys = _table(Preset, list(Preset.model_fields))
    parts = [f"`[clean.PRESET]`, and `[sources.clean.PRESET]` for one source: the keys of every preset.\n\n{keys}"]
    for name, preset in PRESETS.items():
        about = inspect.cleandoc(preset.__doc__ or "")
        parts.append(f"`[clean.{name}]`: {about[0].lower()}{about[1:]}\n\n{_table(preset, preset.limit_keys())}")
    for name, model in FILTERS.items():
        about = inspect.cleandoc(model.__doc__ or "")
        parts.append(f"`[clean.{name}]`: {about[0].lower()}{about[1:]}\n\n{_table(model, model.ordered_keys())}")
    about = " ".join(inspect.cleandoc(NearDuplicatesRecipe.__doc__ or "").split())
    fields = list(NearDuplicatesRecipe.model_fields)
    parts.append(f"`[clean.near_duplicates]`: {about[0].lower()}{about[1:]}\n\n{_table(NearDuplicatesRecipe, fields)}")
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


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings below the fields of a model and its bases, each on one line."""
    found: dict[str, str] = {}
    for parent in model.__bases__:
        if parent not in (BaseModel, Settings) and issubclass(parent, BaseModel):
            found |= field_docs(parent)
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)
    for statement, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            value = after.value if isinstance(after, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[statement.target.id] = " ".join(value.value.split())
    return found


def _section(model: type[BaseModel], name: str) -> tuple[type[BaseModel], bool] | None:
    """Return the model of a field that is a table, and whether there may be many."""
    annotation: Any = model.model_fields[name].annotation
    many = get_origin(annotation) is list
    models = _models_of(get_args(annotation)[0] if many else annotation)
    return (models[0], many) if models else None


def _models_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the model of a table, or of one that may be absent; else nothing."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [part for part in parts if inspect.isclass(part) and issubclass(part, BaseModel)]


def _table(model: type[BaseModel], names: list[str]) -> str:
    docs = field_docs(model)
    return "\n".join([_HEAD, *(_row(name, model.model_fields[name], docs.get(name, "")) for name in names)])


def _row(name: str, field: FieldInfo, meaning: str) -> str:
    kind = _type_text(field.annotation, field.metadata)
    cells = [f"`{name}`", kind, _default_text(field, "bytes" in kind), meaning]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default_text(field: FieldInfo, is_size: bool) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return "none"
    if value in ([], {}, CleanRecipe(), CleanAllRecipe()):
        return "empty"
    if isinstance(value, int) and is_size:
        scale = next((scale for scale in _SIZES if value % scale == 0), 1)
        return f'`"{value // scale} {_SIZES[scale]}"`' if scale > 1 else str(value)
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, list):
        return "`[" + ", ".join(f'"{item}"' for item in cast("list[Any]", value)) + "]`"
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value).lower()


def _type_text(annotation: Any, metadata: list[Any]) -> str:
    """Describe a type in words: `whole number ≥ 1`, `list of text`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if _models_of(annotation):
        return "table"
    if annotation == Name or (annotation is str and metadata and metadata == list(get_args(Name)[1].metadata)):
        return "name"
    if origin is Annotated:
        return _type_text(arguments[0], list(_flatten(arguments[1:])))
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(item, []) for item in arguments if item is not type(None))
    if origin is Literal:
        return ", ".join(f'`"{value}"`' for value in arguments)
    if origin is list:
        return f"list of {_type_text(arguments[0], [])}"
    if origin is dict:
        return "table of numbers" if get_args(arguments[1])[:1] == (float,) else "table"
    converters = [item.func for item in metadata if isinstance(item, BeforeValidator)]
    if parse_size in converters:
        return "bytes"
    words = {int: "whole number", float: "number", str: "text", bool: "true, false"}[annotation]
    return ("count" if parse_count in converters else words) + _bounds_text(metadata, whole=annotation is int)


def _flatten(metadata: tuple[Any, ...]) -> Iterator[Any]:
    for item in metadata:
        yield from item.metadata if isinstance(item, FieldInfo) else [item]


def _bounds_text(metadata: list[Any], *, whole: bool) -> str:
    bounds = {name: getattr(item, name) for item in metadata for name in ("ge", "gt", "le") if hasattr(item, name)}
    least, above, most = bounds.get("ge"), bounds.get("gt"), bounds.get("le")
    if whole and above is not None:
        least, above = above + 1, None
    if least is not None and most is not None and most < 1 << 20:
        return f", {least} to {most}"
    if above is not None:
        return f" > {above}"
    return f" ≥ {least}" if least is not None else ""
