"""Which recipe or experiment is meant: a shipped one, found by name, from a checkout and from a wheel."""

from pathlib import Path
from typing import Literal

from shards.errors import InputError
from shards.terminal.hints import nearest

ShippedKind = Literal["data", "train", "experiments"]


def shipped_folder(kind: ShippedKind) -> Path:
    """Return the folder of the recipes, or of the files of experiments, that are shipped.

    In a checkout they are in `recipes/data/` and the folders beside it; in a wheel, below `tokenmill_recipes/`.
    """
    root = Path(__file__).parents[2]
    in_checkout = root / "recipes" / kind
    return in_checkout if in_checkout.is_dir() else root / "tokenmill_recipes" / kind


def find_recipe(given: str | Path, kind: ShippedKind) -> Path:
    """Return the file of a recipe: the path that is given, or the shipped recipe of that name and kind.

    Raises:
        InputError: a plain word that is neither a file here nor the name of a shipped recipe.
    """
    path, name, shipped = Path(given), str(given), shipped_folder(kind)
    # A word without a folder and an ending is a name, unless such a file is here.
    if path.suffix or path.name != name or (path.exists() and not path.is_dir()):
        return path
    file = shipped / f"{name}.toml"
    if file.is_file():
        return file
    for other in shipped.parent.glob(f"*/{name}.toml"):
        found = "an experiment" if other.parent.name == "experiments" else f"a {other.parent.name} recipe"
        raise InputError(f"recipe {name!r}: the shipped recipe of this name is {found}.")
    names = [file.stem for file in shipped.glob("*.toml")]
    raise InputError(f"recipe {name!r}: no such file here, and no shipped recipe has this name.{nearest(name, names)}")
