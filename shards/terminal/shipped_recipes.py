"""Which recipe or experiment is meant: a shipped one, found by name, from a checkout and from a wheel; and its kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from shards.errors import InputError
from shards.terminal.gone import nearest

RecipeKind = Literal["data", "train"]
ShippedFolder = Literal["data", "train", "experiments"]

_KEYS_OF_KIND = {"data": ("sources", "tokenizer", "mix"), "train": ("model", "train", "optimizer")}
_USE_OF_KIND = {"data": "build RECIPE --out OUT", "train": "train RECIPE --shards SET --run RUN"}


def shipped_folder(package: Path, kind: ShippedFolder) -> Path:
    """Return the folder of the recipes, or of the files of experiments, that are shipped with a package.

    In a checkout they are in `recipes/data/` and the folders beside it; in a wheel, below `tokenmill_recipes/`.
    """
    in_checkout = package.parent / "recipes" / kind
    return in_checkout if in_checkout.is_dir() else package.parent / "tokenmill_recipes" / kind


def find_other_kind(data: Mapping[str, Any], expected: RecipeKind) -> str | None:
    """Return the fault of a recipe of the other kind, by its keys; None if the recipe may be of the expected kind."""
    kinds: tuple[RecipeKind, ...] = ("data", "train")
    (other,) = (kind for kind in kinds if kind != expected)
    if any(key in data for key in _KEYS_OF_KIND[expected]) or not any(key in data for key in _KEYS_OF_KIND[other]):
        return None
    found = ", ".join(f"[{key}]" for key in _KEYS_OF_KIND[other] if key in data)
    return (
        f"this is a {other} recipe (it has {found}); expected a {expected} recipe, which has "
        f"{', '.join(f'[{key}]' for key in _KEYS_OF_KIND[expected])}. "
        f"A {other} recipe is for `tokenmill {_USE_OF_KIND[other]}`."
    )


def find_recipe(given: str | Path, shipped: Path) -> Path:
    """Return the file of a recipe: the path that is given, or the shipped recipe of that name.

    Raises:
        InputError: a plain word that is neither a file here nor the name of a shipped recipe.
    """
    path, name = Path(given), str(given)
    # A word without a folder and an ending is a name, unless such a file is here.
    if path.suffix or path.name != name or path.is_file():
        return path
    found = shipped / f"{name}.toml"
    if found.is_file():
        return found
    for other in shipped.parent.glob(f"*/{name}.toml"):
        kind = "an experiment" if other.parent.name == "experiments" else f"a {other.parent.name} recipe"
        raise InputError(f"recipe {name!r}: the shipped recipe of this name is {kind}.")
    names = [file.stem for file in shipped.glob("*.toml")]
    raise InputError(f"recipe {name!r}: no such file here, and no shipped recipe has this name.{nearest(name, names)}")
