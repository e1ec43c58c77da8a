"""Write three Parquet sources of real text that every installation has: prose, mathematics, code.

Documents that are too long for them become an eval set for the demo's training."""

from __future__ import annotations

import argparse
import json

from shards.terminal.arguments import parse_path
from shards.terminal.program import WHOLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `demo-corpus`."""
    parser.add_argument("folder", type=parse_path, metavar="DIR", help="folder to write to")


def run(options: argparse.Namespace) -> int:
    """Write the demo corpus, print its sources and return the exit status."""
    from pipeline.demo.corpus import write_demo_corpus
    from shards.terminal.display import print_rows

    rows = write_demo_corpus(options.folder)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print_rows(rows)
    return WHOLE
