"""Reads a data recipe's file: every fault in one report, paths that begin at the recipe's folder."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.recipe import paths
from pipeline.recipe.checks import check_phases, check_shards, check_sources, check_tokenizer
from pipeline.recipe.raw_tables import list_path_keys, table_of
from pipeline.recipe.recipe_folder import RECIPE_FOLDER_FILE, find_recipe_folder
from pipeline.recipe.schema import Recipe
from pipeline.recipe.shares import small_phases
from shards.config import Changes, apply_changes, apply_override, check_settings, read_document, settings_error
from shards.stores.store import FolderStore
from shards.terminal.shipped_recipes import find_other_kind

OWN_TOKENIZER = "tokenizer.json"
FileCheck = Callable[[dict[str, Any], Path], Iterator[str]]
"""From a raw recipe, of any shape, and the folder its paths begin at, to faults of the files that it names."""


def read_recipe(
    recipe: Path | dict[str, Any],
    *,
    folder: Path | None = None,
    overrides: Sequence[str] = (),
    changes: Changes = (),
    checks: tuple[FileCheck, ...] = (),
) -> Recipe:
    """Read a data recipe.

    Args:
        recipe: a TOML file, a set's recipe.json, or the tables of a recipe.
        folder: where its relative paths begin. When None, the file's folder, or the one that is stated next to a set's
            recipe.json; the working directory for tables.
        overrides: `dotted.key=value` strings; paths in them are relative to the working directory.
        changes: keys and their values, as if the recipe had them.
        checks: look at the files that the recipe names, which this module does not.

    Raises:
        InputError: with every fault of the file, of the overrides, and of the checks.
    """
    if isinstance(recipe, Path):
        data, where = read_document(recipe), str(recipe)
        parent = _find_folder(recipe, data)
    else:
        data, where, parent = copy.deepcopy(recipe), "recipe", Path()
    if other := find_other_kind(data, "data"):
        raise settings_error(where, [other])
    folder = Path(os.path.abspath(folder or parent))  # without `..`: the same paths from any working directory
    faults = apply_changes(data, changes)
    # Overrides come from a command line: paths in them begin at the working directory.
    written = [table.get(key) for table, key in list_path_keys(data)]
    faults += [fault for override in overrides for fault in apply_override(data, override)]
    _move_overrides(data, written, folder)
    file_checks = tuple(_bind(check, folder) for check in checks)
    checked = check_settings(
        Recipe,
        data,
        where=where,
        checks=(check_sources, check_tokenizer, check_phases, check_shards, *file_checks),
        faults=faults,
    )
    # A phase smaller than a shard is known only when all numbers are good.
    if isinstance(checked.mix.tokens, int) and (small := small_phases(checked, checked.mix.tokens)):
        raise settings_error(where, small)
    return checked.in_folder(folder)


def _find_folder(recipe: Path, data: dict[str, Any]) -> Path:
    """Return the folder at which the paths of a recipe's file begin.

    The recipe.json of a set says `tokenizer.json` for the set's own; if the recipe had such a file, it is the same.
    """
    own = FolderStore(recipe.parent)
    if recipe.name != "recipe.json" or own.find(RECIPE_FOLDER_FILE) is None:
        return recipe.parent
    folder = find_recipe_folder(own) or recipe.parent
    section = table_of(data.get("tokenizer"))
    if section.get("file") == OWN_TOKENIZER:
        section["file"] = paths.move_path(OWN_TOKENIZER, old=Path(os.path.abspath(recipe.parent)), new=folder)
    return folder


def _move_overrides(data: dict[str, Any], written: list[Any], folder: Path) -> None:
    """Let the paths that overrides have put into a recipe begin at its folder, as those that are `written` in it do."""
    for table, key in list_path_keys(data):
        value = table.get(key)
        if value is not None and not any(value is one for one in written):
            table[key] = paths.move_path_value(value, old=Path.cwd(), new=folder)


def _bind(check: FileCheck, folder: Path) -> Callable[[dict[str, Any]], Iterator[str]]:
    return lambda data: check(data, folder)
