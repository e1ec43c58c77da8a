"""A recipe of 40 small text files, which builds in seconds."""

from __future__ import annotations

from pathlib import Path

RECIPE = """
name = "small"
[[sources]]
name = "notes"
paths = ["notes/*.txt"]
format = "file"
weight = 1
[tokenizer]
vocab_size = 300
[shards]
tokens = 2_000
"""


def write_small_recipe(folder: Path) -> Path:
    """Write the recipe, its files below `notes/`, and return the recipe's path."""
    (folder / "notes").mkdir()
    for index in range(40):
        text = f"note {index}: " + " ".join(f"word{index * word}" for word in range(60))
        (folder / f"notes/{index:02d}.txt").write_text(text)
    path = folder / "recipe.toml"
    path.write_text(RECIPE)
    return path
