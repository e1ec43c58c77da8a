"""Print the JSON Schema of manifest.json and of a shard's own metadata."""

from __future__ import annotations

import argparse

from shards.terminal.display import format_json
from shards.terminal.program import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: `schema` has none."""


def run(options: argparse.Namespace) -> Outcome:
    """Return the schema."""
    from shards.format.manifest import json_schema

    schema = json_schema()
    return Outcome(schema, format_json(schema).splitlines())
