"""The tables of the keys of an ablation's file as Markdown, from the schema.

docs/experiments.md holds them between two markers; a test fails when they are stale.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from pipeline.recipe.key_values import parse_count
from shards.terminal.key_tables import KeyTables, write_between
from tokenmill.experiments.schema import AblationConfig, ArmConfig

BEGIN = "<!-- keys of an ablation: written by `tokenmill ablate-keys --into docs/experiments.md` -->"
END = "<!-- end of the keys of an ablation -->"

_TABLES = KeyTables(converters={parse_count: "count"})


def reference_markdown() -> str:
    """Return the tables of all keys of an ablation's file."""
    about = " ".join((inspect.getdoc(ArmConfig) or "").split())
    return f"{_TABLES.table(AblationConfig)}\n\n{about}\n\n{_TABLES.table(ArmConfig)}"


def write_reference_into(path: Path) -> bool:
    """Put the tables between the markers of a file; return whether that changed it.

    Raises:
        InputError: the file lacks a marker.
    """
    return write_between(path, BEGIN, END, reference_markdown())
