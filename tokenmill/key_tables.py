"""Tables of a recipe's keys as Markdown, from its models: types, bounds, defaults and docstrings."""

import ast
import inspect
import itertools
import json
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from pipeline.recipe.clean_recipe import CleanRecipe
from pipeline.recipe.key_values import parse_count, parse_size
from pipeline.recipe.presets import Preset
from shards.config import Settings, find_table
from shards.terminal.amounts import format_size

_HEAD = "| key | type | default | meaning |\n|---|---|---|---|"
_PLAIN = {int: "whole number", float: "number", bool: "true, false"}
_CONVERTERS = {parse_size: "bytes", parse_count: "count"}
"""What a key is called whose type has one of these converters."""
_NEVER_REACHED = 1 << 20
"""An upper bound from here on is not shown: it is that of a file format or of a dtype, and nobody comes near it."""


def file_tables(model: type[Settings]) -> str:
    """Return the tables of all keys of a file: those outside of sections, then section by section."""
    sections = [name for name in model.model_fields if find_table(model.model_fields[name].annotation)]
    parts = [_table(model, [name for name in model.model_fields if name not in sections])]
    for name in sections:
        parts += _section_tables(model, name, "")
    return "\n\n".join(parts)


def _section_tables(parent: type[Settings], name: str, path: str) -> Iterator[str]:
    """Yield the table of keys of a section under its title and docstring, then those of the sections in it."""
    field, meaning = parent.model_fields[name], _meanings(parent).get(name, "")
    section = find_table(field.annotation)
    if section is None or section[0] is CleanRecipe:  # the `clean` tables of one source are those of all sources
        return
    model, many = section
    title = f"[[{path}{name}]]" if many else f"[{path}{name}]"
    said = [inspect.cleandoc(model.__doc__ or ""), "" if path else meaning]
    about = " ".join([*said, "Required." if field.is_required() and not path else ""])
    own = [key for key in model.key_names() if not issubclass(model, Preset) or key not in Preset.model_fields]
    yield f"`{title}`: {' '.join(about.split())}\n\n{_table(model, own)}"
    # The keys that all presets share come before them.
    if issubclass(model, CleanRecipe):
        yield (
            "`[clean.PRESET]`, and `[sources.clean.PRESET]` for one source: the keys of every "
            f"preset.\n\n{_table(Preset, list(Preset.model_fields))}"
        )
    for key in model.model_fields:
        yield from _section_tables(model, key, f"{path}{name}.")


def _table(model: type[Settings], names: Sequence[str]) -> str:
    """Return the table of some keys of a model or of its kinds."""
    fields: dict[str, FieldInfo] = {}
    meanings: dict[str, str] = {}
    for kind in reversed(model.variants()):  # of a key of several kinds, the first one says the default
        fields |= kind.model_fields
        meanings |= _meanings(kind)
    return "\n".join([_HEAD, *(_row(name, fields[name], meanings.get(name, "")) for name in names)])


def _meanings(model: type[Settings]) -> dict[str, str]:
    """Return the docstrings of a model's keys; a model that only changes a default leaves the meaning to its base."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__[: model.__mro__.index(Settings)]):
        definition = ast.parse(inspect.getsource(base)).body[0]
        for key, text in itertools.pairwise(definition.body if isinstance(definition, ast.ClassDef) else []):
            if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(key.target)] = str(text.value.value)
    return found


def _row(name: str, key: FieldInfo, meaning: str) -> str:
    kind = _type_text(key.annotation, key.metadata)
    cells = [f"`{name}`", kind, _default_text(key, "bytes" in kind), " ".join(meaning.split())]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _type_text(annotation: Any, metadata: Sequence[Any]) -> str:
    """Describe a key's type in words: `whole number ≥ 1`, `list of text`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if table := find_table(annotation):
        return "list of table" if table[1] else "table"
    if origin is Annotated:
        parts = [item.metadata if isinstance(item, FieldInfo) else [item] for item in arguments[1:]]
        return _type_text(arguments[0], list(itertools.chain(*parts)))
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(item, []) for item in arguments if item is not type(None))
    if origin is Literal:
        return ", ".join(_literal_text(value) for value in arguments)
    if origin is tuple:
        return f"list of {len(arguments)} of {_type_text(arguments[0], [])}"
    if origin is list:
        return f"list of {_type_text(arguments[0], [])}"
    if origin is dict:
        return "table of numbers" if get_args(arguments[1])[:1] == (float,) else "table"
    # The converter of a value says what a person may write.
    used = [item.func for item in metadata if isinstance(item, BeforeValidator)]
    word = next((word for converter, word in _CONVERTERS.items() if converter in used), _PLAIN.get(annotation, "text"))
    return word if word == "bytes" else word + _bounds_text(annotation, metadata)


def _literal_text(value: Any) -> str:
    """Return a key's value as a recipe has it, on one line."""
    return f"`{json.dumps(value, ensure_ascii=False)}`" if isinstance(value, str | list | tuple) else str(value)


def _default_text(key: FieldInfo, is_size: bool) -> str:
    if key.is_required():
        return "required"
    if key.default_factory_takes_validated_data:
        return "from other keys"
    value: Any = key.get_default(call_default_factory=True)
    if value is None:
        return "none"
    # An empty list, or a table with defaults alone.
    if value in ([], {}) or (isinstance(value, BaseModel) and value == type(value)()):
        return "empty"
    if is_size and isinstance(value, int):
        return f'`"{format_size(value)}"`'
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else _literal_text(value)


def _bounds_text(annotation: Any, metadata: Sequence[Any]) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    bounds = {name: getattr(item, name) for item in metadata for name in signs if hasattr(item, name)}
    bounds = {name: bound for name, bound in bounds.items() if name not in ("lt", "le") or bound < _NEVER_REACHED}
    if annotation is int and "gt" in bounds:
        bounds["ge"] = bounds.pop("gt") + 1
    if bounds.keys() == {"ge", "le"}:
        return f", {bounds['ge']} to {bounds['le']}"
    return ",".join(f" {sign} {bounds[name]}" for name, sign in signs.items() if name in bounds)
