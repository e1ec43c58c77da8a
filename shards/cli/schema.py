"""`python -m shards schema`: print the JSON Schema of the metadata files."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shards.terminal.display import print_json
from shards.terminal.exit_status import WHOLE

if TYPE_CHECKING:
    from shards.terminal.arguments import Subparsers


def add_command(commands: Subparsers) -> None:
    """Add `schema`."""
    parser = commands.add_parser("schema", help="print the JSON Schema of manifest.json and of a shard's own metadata")
    parser.set_defaults(run=_run)


def _run(_options: argparse.Namespace) -> int:
    from shards.format.manifest import json_schema

    print_json(json_schema())
    return WHOLE
