"""Reads a recipe and checks every file that it names, so that one report holds all faults before a build begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.mix.block_lists import check_entries, pin_entries
from pipeline.recipe import load, paths
from pipeline.recipe.schema import Recipe
from pipeline.sources.globs import check_globs


def load_recipe(path: Path, *, overrides: list[str] | None = None) -> Recipe:
    """Read a data recipe, and check the files that it names.

    Args:
        path: a TOML file, or a set's recipe.json.
        overrides: `dotted.key=value` strings; paths in them are relative to the working directory.

    Returns:
        The recipe, with the SHA-256 of each block list.

    Raises:
        SettingsError: with every fault, globs that match nothing and block lists that cannot be read included.
    """
    checks = (check_globs, _check_tokenizer_file, check_entries)
    return pin_entries(load.load_recipe(path, overrides=overrides, checks=checks))


def _check_tokenizer_file(data: dict[str, Any], folder: Path) -> Iterator[str]:
    section = data.get("tokenizer")
    file = section.get("file") if isinstance(section, dict) else None
    if isinstance(file, str) and not Path(paths.join(folder, file)).is_file():
        yield f"tokenizer.file: no file {paths.join(folder, file)!r}. {paths.explain(folder, file)}"
