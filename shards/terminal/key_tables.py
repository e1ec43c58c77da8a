"""Tables of a recipe's keys as Markdown, from its models: types, bounds, defaults and docstrings.

Docstrings are read from the source when they are asked for: pydantic could collect them, but would do so at every
start.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from shards.config import Settings
from shards.errors import InputError

_HEAD = "| key | type | default | meaning |\n|---|---|---|---|"
_SIZES = {10**12: "TB", 10**9: "GB", 10**6: "MB"}
_PLAIN = {int: "whole number", float: "number", str: "text", bool: "true, false"}
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
    many = get_origin(annotation) is list
    models = _models_of(get_args(annotation)[0] if many else annotation)
    return (models[0], many) if models else None


def write_between(path: Path, begin: str, end: str, markdown: str) -> bool:
    """Put Markdown between two lines of a file; return whether that changed it.

    Raises:
        InputError: the file lacks one of the lines.
    """
    text = path.read_text(encoding="utf-8")
    first, last = text.find(begin), text.find(end)
    if first < 0 or last < first:
        raise InputError(f"{path}: lacks the lines {begin!r} and {end!r}. Put them where the tables belong.")
    updated = f"{text[: first + len(begin)]}\n\n{markdown}\n\n{text[last:]}"
    if updated != text:
        path.write_text(updated, encoding="utf-8")
    return updated != text


@dataclass(frozen=True)
class KeyTables:
    """Writes tables.

    Attributes:
        converters: what a key is called whose type has one of these converters: `{parse_size: "bytes"}`.
        name: the type of names, if the recipe has one.
    """

    converters: Mapping[Callable[[Any], Any], str] = field(default_factory=dict[Callable[[Any], Any], str])
    name: Any = None

    def table(self, model: type[Settings], names: Sequence[str] | None = None) -> str:
        """Return the table of a model's keys, of all its kinds, or of some of them."""
        docs: dict[str, str] = {}
        fields: dict[str, FieldInfo] = {}
        for kind in reversed(model.variants()):  # of a key of several kinds, the first one says the default
            docs |= field_docs(kind)
            fields |= kind.model_fields
        chosen = model.key_names() if names is None else names
        return "\n".join([_HEAD, *(self._row(name, fields[name], docs.get(name, "")) for name in chosen)])

    def _row(self, name: str, key: FieldInfo, meaning: str) -> str:
        kind = self._type_text(key.annotation, key.metadata)
        cells = [f"`{name}`", kind, _default_text(key, "bytes" in kind), meaning]
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    def _type_text(self, annotation: Any, metadata: list[Any]) -> str:
        """Describe a type in words: `whole number ≥ 1`, `list of text`."""
        origin, arguments = get_origin(annotation), get_args(annotation)
        if _models_of(annotation):
            return "table"
        if self.name is not None and annotation == self.name:
            return "name"
        if annotation is str and metadata and self.name and metadata == list(_flatten(get_args(self.name)[1:])):
            return "name"
        if origin is Annotated:
            return self._type_text(arguments[0], list(_flatten(arguments[1:])))
        if origin in (Union, types.UnionType):
            return " or ".join(self._type_text(item, []) for item in arguments if item is not type(None))
        if origin is Literal:
            return ", ".join(f'`"{value}"`' for value in arguments)
        if origin is tuple:
            return f"list of {len(arguments)} of {self._type_text(arguments[0], [])}"
        if origin is list:
            return f"list of {self._type_text(arguments[0], [])}"
        if origin is dict:
            return "table of numbers" if get_args(arguments[1])[:1] == (float,) else "table"
        # The converter of a value says what a person may write.
        used = [item.func for item in metadata if isinstance(item, BeforeValidator)]
        word = next((word for converter, word in self.converters.items() if converter in used), _PLAIN[annotation])
        return word if word == "bytes" else word + _bounds_text(metadata, whole=annotation is int)


def _models_of(annotation: Any) -> list[type[Settings]]:
    """Return the model of a table, or of one that may be absent; else nothing."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType, Annotated) else (annotation,)
    return [part for part in parts if inspect.isclass(part) and issubclass(part, Settings)]


def _default_text(key: FieldInfo, is_size: bool) -> str:
    if key.is_required():
        return "required"
    if key.default_factory_takes_validated_data:
        return "from other keys"
    value: Any = key.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return "none"
    if value in ([], {}) or (isinstance(value, BaseModel) and value == type(value)()):
        return "empty"
    if isinstance(value, int) and is_size:
        scale = next((scale for scale in _SIZES if value % scale == 0), 1)
        return f'`"{value // scale} {_SIZES[scale]}"`' if scale > 1 else str(value)
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return "`[" + ", ".join(f'"{item}"' if isinstance(item, str) else str(item) for item in items) + "]`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(map(str, cast("tuple[Any, ...]", value))) + "]`"
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
