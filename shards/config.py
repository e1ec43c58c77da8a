"""Read hand-written settings: TOML, `--set` overrides and a pydantic model in; a frozen object or every fault out.

Data recipes and train recipes share it, so that both behave alike. It reads one file and runs nothing. It also reads
the JSON that a build or a training run recorded: an object that has a key twice is refused, since some readers take the
first of the two and others the last.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, Union, cast, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from shards.errors import InputError, plural
from shards.stores.files import read_file
from shards.terminal.gone import did_you_mean, nearest

ModelT = TypeVar("ModelT", bound=BaseModel)
Document = dict[str, Any]
"""A table of a config as it is read: values by key, not checked yet."""
Check = Callable[[Document], Iterator[str]]
Changes = Iterable[tuple[str, Sequence[str], Any]]
"""Keys to set in a raw config: what messages call each change, the parts of the key, and the value."""


MAX_RECIPE_BYTES = 1 << 26
"""A larger file of settings is refused before it is read."""

RecipeKind = Literal["data", "train"]
_KEYS_OF_KIND = {"data": ("sources", "tokenizer", "mix"), "train": ("model", "train", "optimizer")}
_USE_OF_KIND = {"data": "build RECIPE --out OUT", "train": "train RECIPE --shards SET --run RUN"}


class Settings(BaseModel):
    """Base of all settings models. Frozen; refuses unknown keys, loose types, infinities and NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def variants(cls) -> Sequence[type[Self]]:
        """Return the models of the settings' table: several if its keys depend on its kind."""
        return [cls]

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the keys of the settings' table, in the order of its documentation."""
        return list(cls.model_fields)


def in_form(pattern: str, words: str) -> AfterValidator:
    """Return the check that a setting's whole text has the form of a pattern; its fault says it in words."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {words}")
        return text

    return AfterValidator(check)


def settings_error(where: str, faults: Sequence[str]) -> InputError:
    """Return the error of settings that cannot be used: one problem for each fault, at a place such as the file."""
    return InputError([f"{where}: {fault}" for fault in faults])


def load_settings(model: type[ModelT], path: Path) -> ModelT:
    """Read a TOML file, or a .json file of the same keys, into a model.

    Raises:
        InputError: with every fault: its key, what was found, what was expected, and the nearest key when a key is
            unknown.
    """
    return check_settings(model, read_document(path), where=str(path))


_MOST_DETAILS = 200
"""How many of pydantic's errors are told, several a key: describing one of a long list takes milliseconds."""


def check_settings(
    model: type[ModelT],
    data: Document,
    *,
    where: str,
    checks: tuple[Check, ...] = (),
    faults: Sequence[str] = (),
    context: Any = None,
) -> ModelT:
    """Turn the raw document of a config into its model.

    Args:
        model: the pydantic model of the document.
        data: the document.
        where: the place that messages name, such as the file.
        checks: functions from the raw document to faults, for rules that cross sections. They run even if the model
            finds faults, so that one report has everything; they must accept a document of any shape.
        faults: faults that are already known.
        context: what the validators of the model are given.

    Raises:
        InputError: with every fault.
    """
    faults = list(faults)
    # The model and all checks are tried, so that one report has every fault.
    result: ModelT | None = None
    try:
        result = model.model_validate(data, context=context)
    except ValidationError as error:
        # pydantic's errors in our words: one fault for each place, whatever types the key may have.
        by_place: dict[str, list[Document]] = {}
        for detail in error.errors(include_url=False)[:_MOST_DETAILS]:
            if detail["type"] == "default_factory_not_called":
                continue  # for want of another key, which has a fault
            steps = list(_walk(detail["loc"], data, is_missing=detail["type"] == "missing"))
            place = ".".join(name for _, name in steps) or "file"
            by_place.setdefault(place, []).append({**detail, "loc": tuple(part for part, _ in steps)})
        faults += [f"{place}: {_describe(model, own)}" for place, own in by_place.items()]
        if error.error_count() > _MOST_DETAILS:
            faults.append("there are more faults, perhaps thousands. Correct these first")
    for check in checks:
        faults += [fault for fault in check(data) if fault not in faults]
    if faults or result is None:
        raise settings_error(where, faults)
    return result


def read_partly(model: type[ModelT], data: Any) -> ModelT:
    """Return a config's model for `checks`; a refused or missing key is NaN, so every `<` and `>` with it is false."""
    given = cast("Document", data) if isinstance(data, dict) else {}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        # No comparison with NaN is true, so a refused value gives no second fault.
        refused = {str(fault["loc"][0]): math.nan for fault in error.errors()}
        values = {key: value for key, value in (given | refused).items() if key in model.model_fields}
        for key, value in values.items():
            if isinstance(value, dict | list):  # tables in it become models, as in a config without faults
                values[key] = TypeAdapter(cast("Any", model.model_fields[key].annotation)).validate_python(value)
        return model.model_construct(None, **values)


def read_document(path: Path) -> Document:
    """Read a config, a TOML or a .json file, into a raw document.

    Raises:
        InputError: the file cannot be read, is not valid, or holds no table.
    """
    kind, parse = ("JSON", load_json) if path.suffix == ".json" else ("TOML", tomllib.loads)
    try:
        data: Any = parse(read_file(path, MAX_RECIPE_BYTES).decode())
    except OSError as error:
        raise settings_error(str(path), [f"cannot be read: {error.strerror}. Expected a recipe in {kind}"]) from error
    except (ValueError, RecursionError) as error:  # the errors of both formats, and of UTF-8
        is_yaml = "Expected '=' after a key" in str(error)
        remedy = _NO_RECIPE if is_yaml or path.suffix not in (".toml", ".json") else ""
        raise settings_error(str(path), [f"not valid {kind}: {error}{remedy}"]) from error
    if isinstance(data, dict):
        return cast("Document", data)
    raise settings_error(str(path), [f"expected a table of keys, got {type(data).__name__}{_NO_RECIPE}"])


_NO_RECIPE = ". Recipes are TOML: `tokenmill init PATH` writes one for data, and `tokenmill keys` lists the keys."


def load_json(text: bytes | str) -> Any:
    """Return the value of a JSON text, a config's or another one's, in UTF-8.

    Raises:
        ValueError: not JSON, or an object has a key twice.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_make_object)


def check_keys(text: bytes | str, most: int) -> None:
    """Check that no object of a JSON text, such as a config, has a key twice or over `most`. What is no JSON passes.

    Raises:
        InputError: an object has.
    """

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > most:
            raise InputError(f"an object has {len(pairs):,} keys; expected at most {most:,}")
        try:
            _make_object(pairs)
        except ValueError as error:
            raise InputError(str(error)) from error

    try:
        json.loads(text, object_pairs_hook=check)
    except InputError:
        raise
    except (ValueError, RecursionError):
        pass  # whoever reads it says what it is


def _make_object(pairs: list[tuple[str, Any]]) -> Document:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen = set[str]()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice[:80]!r} occurs twice; expected once")
    return made


def find_other_kind(data: Mapping[str, Any], expected: RecipeKind) -> str | None:
    """Return the fault of a config that is a recipe of the other kind, by its keys; None if it may be as expected."""
    other: RecipeKind = "train" if expected == "data" else "data"
    if any(key in data for key in _KEYS_OF_KIND[expected]) or not any(key in data for key in _KEYS_OF_KIND[other]):
        return None
    found = ", ".join(f"[{key}]" for key in _KEYS_OF_KIND[other] if key in data)
    return (
        f"this is a {other} recipe (it has {found}); expected a {expected} recipe, which has "
        f"{', '.join(f'[{key}]' for key in _KEYS_OF_KIND[expected])}. "
        f"A {other} recipe is for `tokenmill {_USE_OF_KIND[other]}`."
    )


def apply_override(data: Document, override: str, mark: Callable[[Any], Any] = lambda value: value) -> Iterator[str]:
    """Set one dotted key of a raw config in place, and yield the fault if that is not possible.

    Values are in TOML syntax (a bare word is a string). List items are addressed by index (`sources.0.weight`), or by
    their name (`sources.fineweb-edu.weight`). `mark` changes the value before it is set.
    """
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        yield f"--set {override!r}: expected KEY=VALUE, a dotted key and its value in TOML syntax"
        return
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed: Document = {}
    value = parsed["value"] if len(parsed) == 1 else text.strip()
    yield from set_key(data, key.strip().split("."), mark(value), shown=f"--set {override!r}")


def set_key(data: Document, key: Sequence[str], value: Any, *, shown: str) -> Iterator[str]:
    """Set one key of a raw config in place, by its parts, and yield the fault if that is not possible.

    Args:
        data: the config.
        key: the parts; an item of a list is named by its index or its name.
        value: the value.
        shown: what a fault calls the change.
    """
    # From table to table, or to an item of a list by its name or number.
    *parents, last = key
    place: Any = data
    at = 0
    while at < len(parents):
        above, part = place, parents[at]
        # The name of an item may have dots: the longest that fits is meant.
        ends = range(len(parents) if isinstance(above, list) else at + 1, at, -1)
        found = ((item, end) for end in ends if (item := _descend(above, ".".join(parents[at:end]))) is not None)
        place, at = next(found, (None, at))
        if place is None:
            names = [name for item in list_of(above) if isinstance(name := table_of(item).get("name"), str)]
            yield f"{shown}: no {part!r} in this file.{nearest(part, names) if names else ''}"
            return
    if isinstance(place, list):
        yield f"{shown}: {'.'.join(parents)} is a list; name one of its items first"
    elif isinstance(place, dict):
        place[last] = value
    else:
        yield f"{shown}: {'.'.join(parents)} is a plain value"


def apply_changes(data: Document, changes: Changes) -> list[str]:
    """Set keys of a raw config in place, and return the faults of those that cannot be set."""
    return [fault for shown, key, value in changes for fault in set_key(data, key, value, shown=shown)]


def _descend(place: Any, part: str) -> Any:
    if isinstance(place, dict):
        return cast("Document", place).setdefault(part, {})
    if isinstance(place, list):
        for index, item in enumerate(cast("list[Any]", place)):
            named = isinstance(item, dict) and cast("Document", item).get("name") == part
            if named or part == str(index):
                return cast("Any", item)
    return None


def _describe(model: type[BaseModel], details: list[Document]) -> str:
    """Return the fault of a place in a config from the errors of each type that the key may have."""
    first, value = details[0], details[0]["input"]
    if first["type"] == "extra_forbidden":
        key, parent = str(first["loc"][-1]), _model_at(model, first["loc"][:-1])
        # The very key of another table is meant more likely than a similar one of this table.
        fields = model.model_fields.items()
        places = [name for name, field in fields for own in _models_in(field.annotation) if key in own.model_fields]
        if len(places) == 1:
            return f"unknown key. Did you mean '{places[0]}.{key}'?"
        return f"unknown key.{nearest(key, parent.key_names()) if parent else ''}"
    if first["type"] == "missing":
        return "required key is missing."
    if first["type"] == "too_short" and not value:
        return "an empty list; expected at least one item. Leave the key out, or name one."
    own = [str(detail["ctx"]["error"]) for detail in details if detail["type"] == "value_error"]
    if own:  # of a check of ours: the value has the right type
        return f"{own[0]}; got {show_value(value)}"
    expected = list(dict.fromkeys(_expected(detail) for detail in details))
    names = [name for detail in details for name in re.findall("'([^']*)'", detail.get("ctx", {}).get("expected", ""))]
    # A wrong word first, then a value with or without quotes that it should not have.
    hint = did_you_mean(value, names) if isinstance(value, str) else ""
    if not hint and isinstance(value, str) and _is_of_type(value, details):
        hint = f" Write it without quotes: {value.strip()}"
    elif not hint and isinstance(value, bool | int | float) and "string_type" in {detail["type"] for detail in details}:
        hint = f' Write it in quotes: "{show_value(value)}"'
    return f"expected {' or '.join(expected)}; got {show_value(value)}{hint and '.'}{hint}"


_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "invalid-json-value": "text, a number, true, false, a list or a table",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_type": "a table",
    "string_too_long": "at most {max_length} characters",
    "string_type": "text",
    "string_unicode": "text that UTF-8 can hold",
    "too_long": "a list of {max_length}",
    "too_short": "a list of {min_length} or more",
    "tuple_type": "a list",
}
"""What a key expects, by the type of pydantic's error. tests/test_wrong_values.py tries every key of both recipes."""


def _expected(detail: Document) -> str:
    if detail["type"] == "string_too_short":
        return f"at least {plural(detail['ctx']['min_length'], 'character')}"
    bounds = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in detail.get("ctx", {}).items()
    }
    words = _EXPECTED.get(detail["type"])
    return words.format(**bounds) if words else str(detail["msg"])


def _is_of_type(text: str, details: list[Document]) -> bool:
    """Return whether a config's text would be what a key expects if it had no quotes."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return False
    wanted = {"bool_type": bool, "float_type": (int, float), "int_type": int, "list_type": list}
    return any(
        isinstance(value, wanted.get(detail["type"], ())) and isinstance(value, bool) == (detail["type"] == "bool_type")
        for detail in details
    )


def show_value(value: Any, most: int = 80) -> str:
    """Return a config's value for a message, as a recipe has it, cut if it has more than `most` characters."""
    text = _write_value(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def _write_value(value: Any) -> str:
    """Return a config's value as a recipe has it."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_write_value, cast('list[Any]', value)))}]"
    if isinstance(value, dict):
        text = ", ".join(f"{key} = {_write_value(item)}" for key, item in cast("Document", value).items())
        return f"{{ {text} }}" if text else "{}"
    return str(value) if isinstance(value, date | time) else repr(value)


def item_names(items: list[Any]) -> list[str]:
    """Return how faults of a config name the items of a list: by `name`, or by index if that is missing or shared."""
    # A name that two items share names neither.
    tables = [cast("Document", item) if isinstance(item, dict) else {} for item in items]
    names = [name if isinstance(name := table.get("name"), str) else "" for table in tables]
    counts = Counter(names)
    return [name if name and counts[name] == 1 else str(index) for index, name in enumerate(names)]


def table_of(value: Any) -> Document:
    """Return a config's value that is a table; an empty table for any other."""
    return cast("Document", value) if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Return a config's value that is a list; an empty list for any other."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def named_tables(data: Document, key: str) -> list[tuple[str, Document]]:
    """Return the tables of a config's key such as `sources` or `mix.phases`, with places such as `sources.prose`."""
    value: Any = data
    for part in key.split("."):
        value = table_of(value).get(part)
    items = list_of(value)
    named = zip(item_names(items), items, strict=True)
    return [(f"{key}.{name}", table_of(item)) for name, item in named if isinstance(item, dict)]


def _walk(loc: tuple[int | str, ...], data: Any, *, is_missing: bool) -> Iterator[tuple[int | str, str]]:
    """Yield each part of a location that exists in a config, or is missing in it, and its name in messages.

    pydantic appends the names of a union's branches, which no document has.
    """
    for part in loc:
        if isinstance(data, dict):
            if part not in data and not is_missing:
                return
            yield part, str(part)
            data = cast("dict[Any, Any]", data).get(part)
        elif isinstance(data, list) and isinstance(part, int):
            items = cast("list[Any]", data)
            present = part < len(items)  # a tuple's item may be missing
            yield part, item_names(items)[part] if present and isinstance(items[part], dict) else str(part)
            data = items[part] if present else None
        else:
            return


def _model_at(model: type[BaseModel] | None, loc: tuple[int | str, ...]) -> type[Settings] | None:
    for part in loc:
        if model is None or isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = next(_models_in(field.annotation), None) if field else None
    return model if model is not None and issubclass(model, Settings) else None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (list, tuple, dict, Annotated, Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _models_in(argument)
