"""A recipe of 40 small text files, which builds in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.recipes import source, write_recipe


def write_small_recipe(folder: Path, **tables: Any) -> Path:
    """Write the recipe, with other tables if they are given, its files below `notes/`, and return the recipe's path."""
    (folder / "notes").mkdir()
    for index in range(40):
        text = f"note {index}: " + " ".join(f"word{index * word}" for word in range(60))
        (folder / f"notes/{index:02d}.txt").write_text(text)
    notes = source("notes", "notes/*.txt", format="file")
    return write_recipe(folder / "recipe.toml", notes, **{"shards": {"tokens": 2000}} | tables)
