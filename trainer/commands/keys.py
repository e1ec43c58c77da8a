"""List every key of a train recipe as Markdown tables, from its schema."""

from __future__ import annotations

import argparse
import inspect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: `keys` has none."""


def run(options: argparse.Namespace) -> int:
    """Print the tables."""
    print(train_keys_markdown())
    return 0


def train_keys_markdown() -> str:
    """Return the tables of all keys of a train recipe."""
    from shards.terminal.key_tables import KeyTables, find_section
    from trainer.recipe import TrainRecipe

    tables, sections = KeyTables(), {name: find_section(TrainRecipe, name) for name in TrainRecipe.model_fields}
    # The keys without a section first, then a table for each section.
    parts = [tables.table(TrainRecipe, [name for name, section in sections.items() if section is None])]
    for name, section in sections.items():
        if section is not None:
            model, _ = section
            required = " Required." if TrainRecipe.model_fields[name].is_required() else ""
            about = " ".join(inspect.cleandoc(model.__doc__ or "").split())
            parts.append(f"{about}{required}\n\n{tables.table(model)}")
    return "\n\n".join(parts)
