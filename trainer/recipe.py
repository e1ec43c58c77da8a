"""Reading a train recipe: TOML, overrides, and one report with every problem.

Each problem names its place, what was found and what was expected. Nothing is written and torch is not imported.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.config import SECTIONS, TrainRecipe, find_rule_problems
from trainer.errors import InputError


def load_recipe(path: Path, overrides: list[str] | None = None) -> TrainRecipe:
    """Read a train recipe from TOML and apply `KEY=VALUE` overrides.

    Raises:
        InputError: with every problem of the file and of the overrides.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}. Expected a train recipe in TOML.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not TOML: {error}") from error
    problems: list[str] = []
    for override in overrides or []:
        try:
            _merge(tables, parse_override(override), override)
        except InputError as error:
            problems += error.problems
    try:
        recipe = parse_recipe(tables)
    except InputError as error:
        problems += [f"{path}: {problem}" for problem in error.problems]
    else:
        if not problems:
            return recipe
    raise InputError(problems)


def parse_recipe(tables: dict[str, Any]) -> TrainRecipe:
    """Turn a recipe's tables into the frozen model.

    Raises:
        InputError: with every problem: unknown keys, types, bounds, and rules between keys.
    """
    problems: list[str] = []
    recipe = None
    try:
        recipe = TrainRecipe.model_validate(tables)
    except ValidationError as error:
        problems += [_describe(dict(detail)) for detail in error.errors(include_url=False)]
    problems += find_rule_problems(tables)
    if recipe is None or problems:
        raise InputError(problems)
    return recipe


def parse_override(text: str) -> dict[str, Any]:
    """Parse `section.key=VALUE`, with VALUE in TOML syntax, into nested tables.

    Raises:
        InputError: the text is not of that form.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or "\n" in text:
        raise InputError(f"--set {text}: expected KEY=VALUE, such as --set train.steps=100")
    try:
        return tomllib.loads(f"{key.strip()} = {value.strip()}")
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"--set {text}: {value.strip()!r} is not a TOML value ({error}). "
            f"Strings take quotes: --set '{key.strip()}=\"{value.strip()}\"'"
        ) from error


def flatten(tables: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys: `{"train": {"steps": 1}}` becomes `{"train.steps": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def find_changes(old: TrainRecipe, new: TrainRecipe) -> dict[str, tuple[Any, Any]]:
    """Return the keys whose values differ, each with its (old, new) values."""
    before, after = flatten(old.model_dump()), flatten(new.model_dump())
    keys = sorted(before.keys() | after.keys())
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def _merge(tables: dict[str, Any], extra: dict[str, Any], override: str) -> None:
    for key, value in extra.items():
        there = tables.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            _merge(there, value, override)
        elif isinstance(value, dict) and there is not None:
            raise InputError(f"--set {override}: {key} is the value {there!r} in the recipe, not a table")
        else:
            tables[key] = value


def _describe(detail: dict[str, Any]) -> str:
    path = [str(part) for part in detail["loc"]]
    place, kind, found = ".".join(path), detail["type"], repr(detail.get("input"))[:80]
    if kind == "extra_forbidden":
        return f"{place}: unknown key (found {found}){_suggest(path)}"
    if kind == "missing":
        return f"{place}: missing; expected {_expected(path)}"
    if kind == "model_type":
        return f"{place}: expected a table [{place}], found {found}"
    message = detail["msg"].replace("Input should be", "expected")
    return f"{place}: {message[:1].lower()}{message[1:]}, found {found}"


def _suggest(path: list[str]) -> str:
    """Return "; did you mean ...?" for an unknown key: the nearest name here, or the same name in another section."""
    key = path[-1]
    known = list(SECTIONS[path[0]].model_fields) if len(path) > 1 else list(TrainRecipe.model_fields)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    elsewhere = [f"{section}.{key}" for section, model in SECTIONS.items() if key in model.model_fields]
    if near:
        return f"; did you mean {'.'.join([*path[:-1], near[0]])}?"
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    return f"; expected one of {', '.join(known)}"


def _expected(path: list[str]) -> str:
    if len(path) == 1 and path[0] in SECTIONS:
        return f"a table [{path[0]}]"
    model = SECTIONS[path[0]] if len(path) > 1 else TrainRecipe
    annotation = model.model_fields[path[-1]].annotation
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    if annotation in names:
        return names[annotation]
    return str(annotation).replace("typing.Literal", "one of ")
