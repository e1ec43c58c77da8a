"""Write Parquet sources of real text that every installation has: prose, mathematics, code, questions with answers.

Documents that are too long for them become an eval set for the demo's training."""

import argparse

from shards.terminal.arguments import parse_path
from shards.terminal.program import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `demo-corpus`."""
    parser.add_argument("folder", type=parse_path, metavar="DIR", help="folder to write to")


def run(options: argparse.Namespace) -> Outcome:
    """Write the demo corpus, and return its sources."""
    from pipeline.demo.corpus import write_demo_corpus

    rows = write_demo_corpus(options.folder)
    return Outcome({"sources": rows}, [rows])
