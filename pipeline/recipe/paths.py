"""The paths that a recipe names: relative to the folder of the recipe's file, wherever a command runs.

Paths given by `--set` on a command line are relative to the working directory, as a person who types them expects; they
are rewritten to begin at the recipe's folder. A set's recipe.json names paths as the recipe did:
`pipeline.recipe.recipe_folder` says where they begin.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from shards.terminal.shipped_recipes import shipped_folder

SHIPPED = shipped_folder(Path(__file__).parents[1], "data")
"""The folder of the data recipes that come with the distribution."""


def join_path(folder: Path, path: str) -> str:
    """Return a path or glob of a recipe as one that begins at the root; URLs stay as they are."""
    return _map_local(path, lambda local: _join_local(folder, local))


def move_path(path: str, *, old: Path, new: Path) -> str:
    """Return a relative path that begins at the folder `old` as one that begins at `new`; others stay as they are."""
    return _map_local(path, lambda local: os.path.relpath(old / local, new))


def explain_path(folder: Path, path: str) -> str:
    """Return the folder that a path is relative to, for an error; and how to write the path if it is right from the
    working directory."""
    rule = f"Paths begin at the recipe's folder, {folder}; paths of --set at the working directory"
    # Most such errors are a path that is right from where the person is.
    here = join_path(Path.cwd(), path)
    if here != join_path(folder, path) and "://" not in here and glob.glob(here, recursive=True):
        return (
            f"{rule}. There are files at {here}: write {move_path(path, old=Path.cwd(), new=folder)!r} in the recipe."
        )
    return f"{rule}. Correct the path."


def move_path_value(value: Any, *, old: Path, new: Path) -> Any:
    """Return the value of a key that names paths, one or a list, as `move_path` does; other values stay."""
    if isinstance(value, list):
        return [move_path_value(item, old=old, new=new) for item in cast("list[Any]", value)]
    return move_path(value, old=old, new=new) if isinstance(value, str) else value


def _map_local(path: str, change: Callable[[str], str]) -> str:
    """Apply `change` to the part of a path that is relative to some folder."""
    if not path or "://" in path or path.startswith("~") or os.path.isabs(path):
        return path
    return change(path)


def _join_local(folder: Path, path: str) -> str:
    """Join without `..` in the middle, for messages and provenance; a glob's own `..` after a wildcard stays."""
    while path.startswith(("../", "./")):
        first, path = path.split("/", 1)
        folder = folder.parent if first == ".." else folder
    return os.path.join(folder, path)
