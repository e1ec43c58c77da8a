"""Read hand-written settings: TOML, `--set` overrides and a pydantic model in; a frozen object or every fault out.

Data recipes and train recipes share it, so that both behave alike. It reads one file and runs nothing.
"""

import json
import math
import re
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, Union, cast, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from shards.errors import InputError, unread
from shards.stores.files import read_file
from shards.stores.parse import HALF, MOST_DEPTH, check_values, load_json, parse_toml
from shards.terminal.hints import did_you_mean, nearest

ModelT = TypeVar("ModelT", bound=BaseModel)
Document = dict[str, Any]
"""A table of a config as it is read: values by key, not checked yet."""
Changes = Iterable[tuple[str, Sequence[str], Any]]
"""Keys to set in a raw config: what messages call each change, the parts of the key, and the value."""


MAX_RECIPE_BYTES = 1 << 26
"""A larger file of settings is refused before it is read."""

RecipeKind = Literal["data", "train"]
_KINDS = {
    "data": ("sources", "build RECIPE --out OUT"),
    "train": ("model", "train RECIPE --shards SET --run RUN"),
}
"""The table that only recipes of a kind have, and the command that takes one."""


class Settings(BaseModel):
    """Base of all models of settings and metadata. Frozen; refuses unknown keys, loose types, infinities and NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def variants(cls) -> Sequence[type[Self]]:
        """Return the models of the settings' table: several if its keys depend on its kind."""
        return [cls]

    @classmethod
    def kind_of(cls, table: Document) -> type[Self]:
        """Return the one of `variants` that a raw table is of."""
        return cls

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the keys of the settings' table, in the order of its documentation."""
        return list(cls.model_fields)

    def with_values(self, **values: Any) -> Self:
        """Return the settings with other values of some keys, which are not checked."""
        return self.model_copy(update=values)

    def to_json(self) -> str:
        """Return the settings as canonical JSON: keys in the model's order, two spaces, a final newline."""
        return self.model_dump_json(indent=2) + "\n"

    def rules(self) -> Iterator[str]:
        """Yield the faults between the keys of the table, each as `KEY: FAULT`.

        They are also asked of a table with refused values (see `read_partly`), so that one report has every fault.
        """
        yield from ()

    def refuse(self, keys: Iterable[str], why: str) -> Iterator[str]:
        """Yield a fault for each of some keys of the table that is given, and has not its default."""
        for key in keys:
            default = type(self).model_fields[key].get_default(call_default_factory=True)
            if key in self.model_fields_set and getattr(self, key) != default:
                yield f"{key}: {why}"


def in_form(pattern: str, words: str) -> AfterValidator:
    """Return the check that a setting's whole text has the form of a pattern; its fault says it in words."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {words}")
        return text

    return AfterValidator(check)


Text = Annotated[str, Field(min_length=1)]
"""Text that is not empty."""
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
"""What decides choices by chance; it fits in 64 bits with a sign."""
Share = Annotated[float, Field(gt=0, le=1)]
"""A part of a whole, as a fraction of 1."""


def settings_error(where: str, faults: Iterable[str]) -> InputError:
    """Return the error of settings that cannot be used: one problem for each fault, at a place such as the file."""
    return InputError([f"{where}: {fault}" for fault in faults])


def load_settings(model: type[ModelT], path: Path) -> ModelT:
    """Read a TOML file, or a .json file of the same keys, into a model; raise what `check_settings` does."""
    return check_settings(model, read_document(path), where=str(path))


_MOST_DETAILS = 200
"""How many of pydantic's errors are told, several a key: describing one of a long list takes milliseconds."""


def check_settings(
    model: type[ModelT],
    data: Document,
    *,
    where: str,
    checks: Iterable[Callable[[ModelT], Iterable[str]]] = (),
    faults: Iterable[str] = (),
    context: Any = None,
) -> ModelT:
    """Turn the raw document of a config into its model.

    Args:
        model: the model.
        data: the document.
        where: the place that messages name, such as the file.
        checks: functions from the model to faults, for rules that need more than the document. Like the model's own
            rules, they get what `read_partly` returns if the model refuses something.
        faults: faults that are already known.
        context: what the validators get.

    Raises:
        InputError: with every fault.
    """
    faults = list(faults)
    check_document(data, where)
    try:
        result = model.model_validate(data, context=context)
    except ValidationError as error:
        faults += _describe_all(model, data, error)
        result = read_partly(model, data, context)
    if isinstance(result, Settings):
        faults += _broken_rules(result)
    for check in checks:
        faults += check(result)
    if faults:
        raise settings_error(where, dict.fromkeys(faults))
    return result


def check_document(data: Document, where: str) -> None:
    """Raise an InputError if the values of a config are too deep, too large or no text, before they are walked."""
    try:
        check_values(data)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def read_partly(model: type[ModelT], data: Any, context: Any) -> ModelT:
    """Return what can be read of a table that its model refuses.

    A refused or missing key, or item of a list, is NaN, so that every `<` and `>` with it is false and it has no second
    fault; tables and lists have what can be read of them.
    """
    given = table_of(data)
    try:
        return model.model_validate(given, context=context)
    except ValidationError as error:
        refused = {str(detail["loc"][0]) for detail in error.errors() if detail["loc"]}
    # What pydantic itself takes by name is no key of any model.
    unknown = given.keys() - model.model_fields.keys() - {"cls", "_fields_set"}
    values = {key: given[key] for key in unknown}
    for key, field in model.model_fields.items():
        value, inner, kind = given.get(key), find_table(field.annotation), get_origin(field.annotation)
        if key not in refused:
            if key in given:
                values[key] = _reader(model, key).validate_python(value, context=context)
        elif inner is None:
            values[key] = table_of(value) if kind is dict else math.nan
            if kind is list:
                values[key] = [_read_item(_reader(model, key), item, context) for item in list_of(value)]
        elif inner[1]:
            tables = map(table_of, list_of(value))
            values[key] = [read_partly(inner[0].kind_of(table), table, context) for table in tables]
        else:
            values[key] = read_partly(inner[0], value, context)
    return model.model_construct({*given}, **values)


@lru_cache
def _reader(model: type[BaseModel], key: str) -> TypeAdapter[Any]:
    field, annotated = model.model_fields[key], cast("Any", Annotated)
    return TypeAdapter[Any](annotated[field.annotation, *field.metadata, "read alone"])


def _read_item(reader: TypeAdapter[Any], item: Any, context: Any) -> Any:
    try:
        return reader.validate_python([item], context=context)[0]
    except ValidationError:
        return math.nan


def _broken_rules(table: Settings, place: str = "") -> Iterator[str]:
    yield from (f"{place}{fault}" for fault in table.rules())
    for key, value in table:
        if isinstance(value, Settings) and key in table.model_fields_set:
            yield from _broken_rules(value, f"{place}{key}.")
        elif isinstance(value, list):
            tables = [one for one in cast("list[Any]", value) if isinstance(one, Settings)]
            for name, one in zip(item_names(tables), tables, strict=True):
                yield from _broken_rules(one, f"{place}{key}.{name}.")


def read_document(path: Path) -> Document:
    """Read a config, a TOML or a .json file, or raise the error of one that is not valid or holds no table."""
    kind, parse = ("JSON", load_json) if path.suffix == ".json" else ("TOML", parse_toml)
    try:
        data: Any = parse(read_file(path, MAX_RECIPE_BYTES).decode("utf-8-sig"))  # an editor of Windows writes a mark
    except OSError as error:
        raise InputError(f"{path}: {unread(error, f'Expected a {kind} file.')}") from error
    except (ValueError, RecursionError) as error:  # the errors of both formats, and of UTF-8
        is_yaml = "Expected '=' after a key" in str(error)
        remedy = _NO_RECIPE if is_yaml or path.suffix not in (".toml", ".json") else ""
        raise InputError(f"{path}: not valid {kind}: {error}{remedy}") from error
    if isinstance(data, dict):
        return cast("Document", data)
    raise InputError(f"{path}: expected a table of keys, got {type(data).__name__}{_NO_RECIPE}")


_NO_RECIPE = ". Recipes are TOML: `tokenmill init PATH` writes one for data, and `tokenmill keys` lists the keys."


def check_kind(data: Document, kind: RecipeKind, where: str) -> None:
    """Refuse a config that is a recipe of the other kind, by its tables."""
    own, _ = _KINDS[kind]
    for other, (table, use) in _KINDS.items():
        if table in data and own not in data:
            fault = f"has [{table}], so this is a {other} recipe; expected a {kind} recipe, which has [{own}]"
            raise InputError(f"{where}: {fault}. A {other} recipe is for `tokenmill {use}`.")


class TypedText(str):
    """A text of an override: as a path, it begins at the working directory."""

    __slots__ = ()


def apply_changes(data: Document, changes: Changes, overrides: Iterable[str]) -> Iterator[str]:
    """Set keys of a raw config in place, first `changes`, and yield the faults of those that cannot be set.

    Overrides are `KEY=VALUE`. Values are in TOML syntax (a bare word is text). Items of lists are addressed as
    `item_names` calls them: by name (`sources.fineweb-edu.weight`), and only those without one by number.
    """
    changes = list(changes)
    for override in overrides:
        key, separator, text = override.partition("=")
        if HALF.search(override):
            yield f"--set {override!r}: has bytes that are not UTF-8"
        elif separator and key.strip():
            changes.append((f"--set {override!r}", key.strip().split("."), _mark_typed(_parse_value(text))))
        else:
            yield f"--set {override!r}: expected KEY=VALUE, a dotted key and its value in TOML syntax"
    for shown, key, value in changes:
        if fault := _set_key(data, key, value):
            yield f"{shown}: {fault}"


def _parse_value(text: str) -> Any:
    """Return a value in TOML syntax; a text that is none as it is."""
    try:
        parsed = parse_toml(f"value = {text}")
        check_values(parsed)
    except (ValueError, RecursionError):
        parsed: Document = {}
    return parsed["value"] if len(parsed) == 1 else text.strip()


def _mark_typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _mark_typed(item) for key, item in cast("Document", value).items()}
    if isinstance(value, list):
        return [_mark_typed(item) for item in cast("list[Any]", value)]
    return TypedText(value) if isinstance(value, str) else value


def _set_key(place: Any, key: Sequence[str], value: Any) -> str:
    """Set a key, by its parts, of a table or of a list's item, and return the fault if that is not possible."""
    if len(key) > MOST_DEPTH:
        return f"a key has more than {MOST_DEPTH} parts"
    while isinstance(place, dict | list):
        table, is_list = cast("Document", place), isinstance(place, list)
        named: Document = dict(zip(item_names(table), table, strict=True)) if is_list else table
        # A name may have dots: the longest that fits is meant.
        ends = (end for end in range(len(key) - is_list, 0, -1) if ".".join(key[:end]) in named)
        end = next(ends, 0 if is_list else 1)
        if not end:
            if (name := ".".join(key)) in named:
                return f"{name!r} is an item of a list; name one of its keys"
            return f"no {key[0]!r} in this file.{nearest(key[0], [*named]) if named else ''}"
        name = ".".join(key[:end])
        if end == len(key):
            table[name] = value
            return ""
        place, key = named.setdefault(name, {}), key[end:]
    return f"{key[0]!r} is a key of a plain value"


def _describe_all(model: type[BaseModel], data: Any, error: ValidationError) -> Iterator[str]:
    """Yield pydantic's errors in our words: one fault for each place, whatever types the key may have."""
    by_place: dict[str, list[Document]] = {}
    for detail in error.errors(include_url=False)[:_MOST_DETAILS]:
        if detail["type"] == "default_factory_not_called":  # for want of another key, which has a fault
            continue
        # The names of the location's parts that the config has, or lacks, and the model of the last one's table.
        # pydantic appends the names of a union's branches, which no document has.
        names: list[str] = []
        place, own = data, cast("type[BaseModel] | None", model)
        parent = own
        for part in detail["loc"]:
            if isinstance(place, dict) and (part in place or detail["type"] == "missing"):
                names.append(str(part) or '""')
                field = own.model_fields.get(str(part)) if own else None
                found = find_table(field.annotation) if field else None
                parent, own = own, found and found[0]
                place = table_of(place).get(str(part))
            elif isinstance(place, list) and isinstance(part, int):
                items = cast("list[Any]", place)
                present = part < len(items)  # a tuple's item may be missing
                names.append(item_names(items)[part] if present and isinstance(items[part], dict) else str(part))
                place = items[part] if present else None
            else:
                break
        by_place.setdefault(".".join(names) or "file", []).append({**detail, "key": names[-1:], "parent": parent})
    yield from (f"{place}: {_describe(model, details)}" for place, details in by_place.items())
    if error.error_count() > _MOST_DETAILS:
        yield "there are more faults, perhaps thousands. Correct these first"


def _describe(model: type[BaseModel], details: list[Document]) -> str:
    """Return the fault of a place in a config from the errors of each type that the key may have."""
    first, value = details[0], details[0]["input"]
    if first["type"] == "missing":
        return "required key is missing."
    if first["type"] == "extra_forbidden":
        return _describe_unknown(model, first["parent"], *first["key"])
    own = [str(detail["ctx"]["error"]) for detail in details if detail["type"] == "value_error"]
    if own:  # of a check of ours: the value has the right type
        return f"{own[0]}; got {show_value(value)}"
    expected = [
        _EXPECTED.get(detail["type"]) or re.sub(".* should (be|have) | after validation", "", detail["msg"])
        for detail in details
    ]
    words = " or ".join(dict.fromkeys(expected))
    hint = did_you_mean(value, re.findall("'([^']*)'", words)) if isinstance(value, str) else ""
    return f"expected {words}; got {show_value(value)}{hint and '.'}{hint}"


_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "invalid-json-value": "text, a number, true, false, a list or a table",
    "list_type": "a list",
    "model_type": "a table",
    "string_type": "text",
    "tuple_type": "a list",
}
"""What a key expects, by the type of pydantic's error, where its own words are those of Python or JSON."""


def _describe_unknown(model: type[BaseModel], parent: type[BaseModel] | None, key: str) -> str:
    # The very key of another table is meant more likely than a similar one of this table.
    fields = ((name, find_table(field.annotation)) for name, field in model.model_fields.items())
    places = [name for name, table in fields if table and key in table[0].model_fields]
    known = parent.key_names() if parent is not None and issubclass(parent, Settings) else []
    if key in known:
        return "a key of another `kind`. Leave it out, or set `kind`."
    if len(places) == 1:
        return f"unknown key. Did you mean '{places[0]}.{key}'?"
    return f"unknown key.{nearest(key, known) if known else ''}"


def show_value(value: Any, most: int = 80) -> str:
    """Return a config's value for a message, cut if it has more than `most` characters."""
    shown = str(value) if hasattr(value, "isoformat") else json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def item_names(items: Iterable[Any]) -> list[str]:
    """Return how overrides and faults of a config name the items of a list: by a `name` of its own, or by index.

    An index that is the name of another item has a `#` before it.
    """
    given = [table_of(item).get("name") or getattr(item, "name", None) for item in items]
    names = [name if isinstance(name, str) else "" for name in given]
    counts = Counter(names)
    places = (f"#{index}" if str(index) in counts else str(index) for index in range(len(names)))
    return [name if name and counts[name] == 1 else place for name, place in zip(names, places, strict=True)]


def are_named(tables: Iterable[Any]) -> bool:
    """Return whether each of some tables has its name: a refused one is no text."""
    return all(isinstance(table.name, str) for table in tables)


def shared_names(tables: Iterable[Any]) -> Iterator[tuple[str, int]]:
    """Yield the names that several tables of a config have, and how many have it."""
    for name, count in Counter(table.name for table in tables).items():
        if count > 1 and isinstance(name, str):
            yield name, count


def table_of(value: Any) -> Document:
    """Return a config's value that is a table; an empty table for any other."""
    return cast("Document", value) if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Return a config's value that is a list; an empty list for any other."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def find_table(annotation: Any) -> tuple[type[Settings], bool] | None:
    """Return the model of a key whose values are tables of a config, and whether it has a list of them; else None."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is list:
        inner = find_table(arguments[0])
        return inner and (inner[0], True)
    if origin in (Annotated, Union, types.UnionType):
        return next(filter(None, map(find_table, arguments)), None)
    is_table = isinstance(annotation, type) and issubclass(annotation, Settings)
    return (cast("type[Settings]", annotation), False) if is_table else None
