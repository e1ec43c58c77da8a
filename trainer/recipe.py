"""Reading a train recipe, from TOML or from a checkpoint, and comparing two. Torch is not imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shards.config import Settings, SettingsError, check_settings, load_settings
from shards.errors import InputError
from shards.terminal.recipes import find_recipe, shipped_folder
from trainer.config import TrainRecipe, check_rules

SHIPPED = shipped_folder(Path(__file__).parent, "train")


def load_recipe(path: Path, overrides: list[str] | None = None) -> TrainRecipe:
    """Read a train recipe, a file or the name of a shipped one, and apply `KEY=VALUE` overrides.

    Raises:
        InputError: with every fault of the file and of the overrides.
    """
    with _refusals():
        return load_settings(TrainRecipe, find_recipe(path, SHIPPED), overrides=overrides, checks=(check_rules,))


def parse_recipe(tables: dict[str, Any]) -> TrainRecipe:
    """Turn a resolved recipe, such as a checkpoint holds, back into the model.

    Raises:
        InputError: it is not a recipe that this version knows.
    """
    with _refusals():
        return check_settings(TrainRecipe, tables, where="recipe of the checkpoint", checks=(check_rules,))


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except SettingsError as error:
        raise InputError([f"{error.where}: {fault}" for fault in error.faults]) from error


def find_changes(old: Settings, new: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ, each with its (old, new) values."""
    changes: dict[str, tuple[Any, Any]] = {}
    for (key, before), (_, after) in zip(old, new, strict=True):
        if isinstance(before, Settings):
            changes |= {f"{key}.{name}": values for name, values in find_changes(before, after).items()}
        elif before != after:
            changes[key] = before, after
    return changes
