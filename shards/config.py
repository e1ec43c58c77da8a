"""Read hand-written settings: TOML, `--set` overrides and a pydantic model in; a frozen object or every fault out.

Data recipes and train recipes share it, so that both behave alike. It reads one file and runs nothing. It also reads
the JSON that a build or a training run recorded.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from shards.errors import InputError

ModelT = TypeVar("ModelT", bound=BaseModel)
Check = Callable[[dict[str, Any]], Iterator[str]]


class Settings(BaseModel):
    """Base of all settings models. Frozen; refuses unknown keys, loose types, infinities and NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


class SettingsError(InputError):
    """Settings that cannot be used. Carries one line for each fault."""

    def __init__(self, where: str, faults: list[str]):
        super().__init__([f"{where}: {fault}" for fault in faults])
        self.args = (where, faults)  # pickle rebuilds the error from these
        self.where = where
        self.faults = faults

    def __str__(self) -> str:
        count = "1 problem" if len(self.faults) == 1 else f"{len(self.faults)} problems"
        return "\n".join([f"{self.where}: {count}", *(f"  {fault}" for fault in self.faults)])


def load_settings(
    model: type[ModelT], path: Path, *, overrides: list[str] | None = None, checks: tuple[Check, ...] = ()
) -> ModelT:
    """Read a TOML file, or a .json file of the same keys, into a model.

    Args:
        model: the pydantic model of the whole file.
        path: the file.
        overrides: `dotted.key=value` strings, values in TOML syntax (a bare word is a string).
        checks: as in `check_settings`.

    Raises:
        SettingsError: with every fault: its key, what was found, what was expected, and the nearest key when a key is
            unknown.
    """
    data = read_document(path)
    faults = [fault for override in overrides or [] for fault in apply_override(data, override)]
    return check_settings(model, data, where=str(path), checks=checks, faults=faults)


def check_settings(
    model: type[ModelT],
    data: dict[str, Any],
    *,
    where: str,
    checks: tuple[Check, ...] = (),
    faults: Sequence[str] = (),
) -> ModelT:
    """Turn the raw document of a config into its model.

    Args:
        model: the pydantic model of the document.
        data: the document.
        where: the place that messages name, such as the file.
        checks: functions from the raw document to faults, for rules that cross sections. They run even if the model
            finds faults, so that one report has everything; they must accept a document of any shape.
        faults: faults that are already known.

    Raises:
        SettingsError: with every fault.
    """
    faults = list(faults)
    result: ModelT | None = None
    try:
        result = model.model_validate(data)
    except ValidationError as error:
        faults += [_to_fault(model, dict(detail), data) for detail in error.errors(include_url=False)]
    for check in checks:
        faults += [fault for fault in check(data) if fault not in faults]
    if faults or result is None:
        raise SettingsError(where, faults)
    return result


def read_partly(model: type[ModelT], data: Any) -> ModelT:
    """Return a config's model for `checks`; a refused or missing key is NaN, so every `<` and `>` with it is false."""
    given = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        refused = {str(fault["loc"][0]): math.nan for fault in error.errors()}
        values = {key: value for key, value in (given | refused).items() if key in model.model_fields}
        return model.model_construct(None, **values)


def read_document(path: Path) -> dict[str, Any]:
    """Read a config, a TOML or a .json file, into a raw document.

    Raises:
        SettingsError: the file cannot be read, is not valid, or holds no table.
    """
    kind, parse = ("JSON", json.loads) if path.suffix == ".json" else ("TOML", tomllib.loads)
    try:
        data: Any = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(str(path), [f"cannot be read: {error.strerror}. Expected a recipe in {kind}"]) from error
    except (ValueError, RecursionError) as error:  # the errors of both formats, and of UTF-8
        raise SettingsError(str(path), [f"not valid {kind}: {error}"]) from error
    if isinstance(data, dict):
        return cast("dict[str, Any]", data)
    raise SettingsError(str(path), [f"expected a table of keys, got {type(data).__name__}"])


def apply_override(data: dict[str, Any], override: str) -> Iterator[str]:
    """Set one dotted key of a raw config in place, and yield the fault if that is not possible.

    List items are addressed by index (`sources.0.weight`), or by their name (`sources.fineweb-edu.weight`).
    """
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        yield f"--set {override!r}: expected KEY=VALUE, a dotted key and its value in TOML syntax"
        return
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed: dict[str, Any] = {}
    value = parsed["value"] if len(parsed) == 1 else text.strip()
    *parents, last = key.strip().split(".")
    place: Any = data
    for part in parents:
        place = _descend(place, part)
        if place is None:
            yield f"--set {override!r}: no {part!r} in this file"
            return
    if isinstance(place, list):
        yield f"--set {override!r}: {'.'.join(parents)} is a list; name one of its items first"
    elif isinstance(place, dict):
        place[last] = value
    else:
        yield f"--set {override!r}: {'.'.join(parents)} is a plain value"


def _descend(place: Any, part: str) -> Any:
    if isinstance(place, dict):
        return cast("dict[str, Any]", place).setdefault(part, {})
    if isinstance(place, list):
        for index, item in enumerate(cast("list[Any]", place)):
            named = isinstance(item, dict) and cast("dict[str, Any]", item).get("name") == part
            if named or part == str(index):
                return cast("Any", item)
    return None


def nearest(word: str, words: list[str]) -> str:
    """Return the hint for a wrong word in a config: ' Did you mean X?', or a list of all words if no word is near."""
    return did_you_mean(word, words) or f" Expected one of: {', '.join(sorted(words))}."


def did_you_mean(word: str, words: list[str]) -> str:
    """Return ' Did you mean X?' for a wrong word in a config; nothing if no word is near."""
    close = difflib.get_close_matches(word, words, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _to_fault(model: type[BaseModel], detail: dict[str, Any], data: dict[str, Any]) -> str:
    steps = list(_walk(detail["loc"], data))
    loc = tuple(part for part, _ in steps)
    place = ".".join(name for _, name in steps) or "file"
    if detail["type"] == "extra_forbidden":
        parent = _model_at(model, loc[:-1])
        return f"{place}: unknown key.{nearest(str(loc[-1]), list(parent.model_fields)) if parent else ''}"
    if detail["type"] == "missing":
        return f"{place}: required key is missing."
    if detail["type"] == "too_short" and not detail.get("input"):
        return f"{place}: an empty list; expected at least one item. Leave the key out, or name one."
    message = str(detail["msg"]).removeprefix("Value error, ")
    message = re.sub(r"Input should be a valid dictionary or instance of \w+", "expected a table", message)
    found = repr(detail.get("input"))
    hint = ""
    if detail["type"] == "literal_error" and isinstance(detail.get("input"), str):
        hint = did_you_mean(detail["input"], re.findall("'([^']*)'", detail["ctx"]["expected"]))
    return f"{place}: {message}; got {found if len(found) <= 80 else found[:77] + '...'}{hint and '.'}{hint}"


def item_names(items: list[Any]) -> list[str]:
    """Return how faults of a config name the items of a list: by `name`, or by index if that is missing or shared."""
    tables = [cast("dict[str, Any]", item) if isinstance(item, dict) else {} for item in items]
    names = [name if isinstance(name := table.get("name"), str) else "" for table in tables]
    return [name if name and names.count(name) == 1 else str(index) for index, name in enumerate(names)]


def _walk(loc: tuple[int | str, ...], data: Any) -> Iterator[tuple[int | str, str]]:
    """Yield each part of a location that exists in the document, and its name in messages.

    pydantic appends the names of a union's branches, which no document has.
    """
    for part in loc:
        if isinstance(data, dict):
            yield part, str(part)
            data = cast("dict[Any, Any]", data).get(part)
        elif isinstance(data, list) and isinstance(part, int):
            items = cast("list[Any]", data)
            present = part < len(items)  # a tuple's item may be missing
            yield part, item_names(items)[part] if present else str(part)
            data = items[part] if present else None
        else:
            return


def _model_at(model: type[BaseModel] | None, loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    for part in loc:
        if model is None or isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = next(_models_in(field.annotation), None) if field else None
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (list, tuple, dict, Annotated, Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _models_in(argument)
