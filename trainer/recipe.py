"""Reading a train recipe, from TOML or from a checkpoint, and comparing two. Torch is not imported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shards.settings import SettingsError, load_settings
from trainer.config import TrainRecipe, check_rules
from trainer.errors import InputError


def load_recipe(path: Path, overrides: list[str] | None = None) -> TrainRecipe:
    """Read a train recipe from TOML and apply `KEY=VALUE` overrides.

    Raises:
        InputError: with every fault of the file and of the overrides.
    """
    try:
        return load_settings(TrainRecipe, path, overrides=overrides, checks=(check_rules,))
    except SettingsError as error:
        raise InputError([f"{path}: {fault}" for fault in error.faults]) from error


def parse_recipe(tables: dict[str, Any]) -> TrainRecipe:
    """Turn a resolved recipe, such as a checkpoint holds, back into the model.

    Raises:
        InputError: it is not a recipe that this version knows.
    """
    try:
        recipe = TrainRecipe.model_validate(tables)
    except ValidationError as error:
        raise InputError([f"recipe of the checkpoint: {line}" for line in str(error).splitlines()]) from error
    if problems := list(check_rules(tables)):
        raise InputError(problems)
    return recipe


def find_changes(old: TrainRecipe, new: TrainRecipe) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ, each with its (old, new) values."""
    before, after = dict(_flatten(old.model_dump())), dict(_flatten(new.model_dump()))
    keys = sorted(before.keys() | after.keys())
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def _flatten(tables: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
