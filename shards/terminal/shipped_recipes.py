"""Shipped recipes, found by name: `tokenmill build demo` works in any folder, from a checkout and from a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from shards.errors import InputError

RecipeKind = Literal["data", "train"]


def shipped_folder(package: Path, kind: RecipeKind) -> Path:
    """Return the folder of the recipes that are shipped with a package.

    In a checkout they are in `recipes/data/` or `recipes/train/`; the wheel installs them as `tokenmill_recipes/`.
    """
    in_checkout = package.parent / "recipes" / kind
    return in_checkout if in_checkout.is_dir() else package.parent / "tokenmill_recipes" / kind


def find_recipe(given: str | Path, shipped: Path) -> Path:
    """Return the file of a recipe: the path that is given, or the shipped recipe of that name.

    Raises:
        InputError: a plain word that is neither a file here nor the name of a shipped recipe.
    """
    path, name = Path(given), str(given)
    if path.suffix or path.name != name or path.is_file():
        return path
    found = shipped / f"{name}.toml"
    if found.is_file():
        return found
    from shards.config import nearest  # late: loads pydantic, for which a build's workers would wait

    names = [file.stem for file in shipped.glob("*.toml")]
    raise InputError(f"recipe {name!r}: no such file here, and no shipped recipe has this name.{nearest(name, names)}")
