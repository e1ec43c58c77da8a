"""Tables of a recipe's keys as Markdown, from its models: types, bounds, defaults and docstrings.

Docstrings are read from the source when they are asked for: pydantic could collect them, but would do so at every
start.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pipeline.recipe.key_values import Name, parse_count, parse_size
from shards.config import Settings

_HEAD = "| key | type | default | meaning |\n|---|---|---|---|"
_SIZES = {10**12: "TB", 10**9: "GB", 10**6: "MB"}
_PLAIN = {int: "whole number", float: "number", str: "text", bool: "true, false"}
_CONVERTERS = {parse_size: "bytes", parse_count: "count"}
"""What a key is called whose type has one of these converters."""
_NEVER_REACHED = 1 << 20
"""An upper bound from here on is not shown: it is that of a file format or of a dtype, and nobody comes near it."""


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings below the fields of a model and its bases, each on one line."""
    found: dict[str, str] = {}
    for parent in model.__bases__:
        if parent not in (BaseModel, Settings) and issubclass(parent, BaseModel):
            found |= field_docs(parent)
    # pydantic keeps no docstrings of fields unless it reads them at every start.
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)
    for statement, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            value = after.value if isinstance(after, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[statement.target.id] = " ".join(value.value.split())
    return found


def find_section(model: type[BaseModel], name: str) -> tuple[type[Settings], bool] | None:
    """Return the model of a field that is a table, and whether there may be many."""
    annotation: Any = model.model_fields[name].annotation
    # A list may be annotated, and absent.
    if get_origin(annotation) in (Union, types.UnionType) and get_origin(get_args(annotation)[0]) is Annotated:
        annotation = get_args(get_args(annotation)[0])[0]
    many = get_origin(annotation) is list
    models = _models_of(get_args(annotation)[0] if many else annotation)
    return (models[0], many) if models else None


def file_tables(
    model: type[Settings],
    *,
    elsewhere: Sequence[type[Settings]] = (),
    common: Mapping[type[Settings], str] | None = None,
) -> str:
    """Return the tables of all keys of a file: those outside of sections, then section by section.

    Args:
        model: the model of the file.
        elsewhere: models of sections without tables of their own, because those of another section say the same.
        common: base models whose keys several sections share. Each has one table, with this title, before theirs.
    """
    docs = field_docs(model)
    sections = [name for name in model.model_fields if find_section(model, name)]
    parts = [keys_table(model, [name for name in model.model_fields if name not in sections])]
    for name in sections:
        required = "Required." if model.model_fields[name].is_required() else ""
        parts += _section_tables(model, name, "", [docs.get(name, ""), required], elsewhere, common or {})
    return "\n\n".join(parts)


def _section_tables(
    parent: type[Settings],
    name: str,
    path: str,
    more: Sequence[str],
    elsewhere: Sequence[type[Settings]],
    common: Mapping[type[Settings], str],
) -> Iterator[str]:
    """Yield the table of a section under its title and docstring, then those of the sections in it."""
    section = find_section(parent, name)
    if section is None or section[0] in elsewhere:
        return
    model, many = section
    title = f"[[{path}{name}]]" if many else f"[{path}{name}]"
    about = " ".join(filter(None, [*inspect.cleandoc(model.__doc__ or "").split("\n"), *more]))
    # Keys that several sections share have a table of their own.
    shared = {key for base in common if issubclass(model, base) for key in base.model_fields}
    own = [key for key in model.key_names() if key not in shared]
    yield f"`{title}`: {about[0].lower()}{about[1:]}\n\n{keys_table(model, own)}"
    # What several of its sections share comes before them.
    within = [found[0] for key in model.model_fields if (found := find_section(model, key))]
    for base, words in common.items():
        if any(issubclass(one, base) for one in within):
            yield f"{words}\n\n{keys_table(base, list(base.model_fields))}"
    for key in model.model_fields:
        yield from _section_tables(model, key, f"{path}{name}.", [], elsewhere, common)


def keys_table(model: type[Settings], names: Sequence[str]) -> str:
    """Return the table of some keys of a model or of its kinds."""
    docs: dict[str, str] = {}
    fields: dict[str, FieldInfo] = {}
    for kind in reversed(model.variants()):  # of a key of several kinds, the first one says the default
        docs |= field_docs(kind)
        fields |= kind.model_fields
    return "\n".join([_HEAD, *(_row(name, fields[name], docs.get(name, "")) for name in names)])


def _row(name: str, key: FieldInfo, meaning: str) -> str:
    kind = _type_text(key.annotation, key.metadata)
    cells = [f"`{name}`", kind, _default_text(key, "bytes" in kind), meaning]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _type_text(annotation: Any, metadata: list[Any]) -> str:
    """Describe a type in words: `whole number ≥ 1`, `list of text`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if _models_of(annotation):
        return "table"
    if annotation == Name:
        return "name"
    if annotation is str and metadata and metadata == list(_flatten(get_args(Name)[1:])):
        return "name"
    if origin is Annotated:
        return _type_text(arguments[0], list(_flatten(arguments[1:])))
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
    word = next((word for converter, word in _CONVERTERS.items() if converter in used), _PLAIN[annotation])
    return word if word == "bytes" else word + _bounds_text(metadata, whole=annotation is int)


def _models_of(annotation: Any) -> list[type[Settings]]:
    """Return the model of a table, or of one that may be absent; else nothing."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType, Annotated) else (annotation,)
    return [part for part in parts if inspect.isclass(part) and issubclass(part, Settings)]


def _literal_text(value: str | int) -> str:
    """Return a value as a recipe has it, on one line."""
    return f"`{json.dumps(value, ensure_ascii=False)}`" if isinstance(value, str) else str(value)


def _default_text(key: FieldInfo, is_size: bool) -> str:
    if key.is_required():
        return "required"
    if key.default_factory_takes_validated_data:
        return "from other keys"
    value: Any = key.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return "none"
    # An empty list, or a table with defaults alone.
    if value in ([], {}) or (isinstance(value, BaseModel) and value == type(value)()):
        return "empty"
    if isinstance(value, int) and is_size:
        scale = next((scale for scale in _SIZES if value % scale == 0), 1)
        return f'`"{value // scale} {_SIZES[scale]}"`' if scale > 1 else str(value)
    if isinstance(value, str):
        return _literal_text(value)
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return "`[" + ", ".join(f'"{item}"' if isinstance(item, str) else str(item) for item in items) + "]`"
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value).lower()


def _flatten(metadata: tuple[Any, ...]) -> Iterator[Any]:
    for item in metadata:
        yield from item.metadata if isinstance(item, FieldInfo) else [item]


def _bounds_text(metadata: list[Any], *, whole: bool) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    bounds = {name: getattr(item, name) for item in metadata for name in signs if hasattr(item, name)}
    if whole and "gt" in bounds:
        bounds["ge"] = bounds.pop("gt") + 1
    if whole and "lt" in bounds:
        bounds["le"] = bounds.pop("lt") - 1
    # Whole numbers: `more than 0` is `1 or more`.
    bounds = {name: bound for name, bound in bounds.items() if name not in ("lt", "le") or bound < _NEVER_REACHED}
    if bounds.keys() == {"ge", "le"}:
        return f", {bounds['ge']} to {bounds['le']}"
    return ",".join(f" {sign} {bounds[name]}" for name, sign in signs.items() if name in bounds)
