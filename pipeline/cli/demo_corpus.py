"""`demo-corpus`: gather a small real corpus from this installation."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from shards.terminal.arguments import parse_path
from shards.terminal.exit_status import WHOLE

if TYPE_CHECKING:
    from shards.terminal.arguments import Subparsers


def add_command(commands: Subparsers) -> None:
    """Add `demo-corpus`."""
    parser = commands.add_parser(
        "demo-corpus",
        help="write a small corpus of real text from this installation",
        description="Write three Parquet sources of real text that every installation has: prose, mathematics, code.",
    )
    parser.add_argument("folder", type=parse_path, metavar="DIR", help="folder to write to")
    parser.add_argument("--json", action="store_true", help="print the sources as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the corpus, print its sources and return the exit status."""
    from pipeline.demo.corpus import write_demo_corpus
    from shards.terminal.display import print_rows

    rows = write_demo_corpus(options.folder)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print_rows(rows, title="demo corpus")
    return WHOLE
