"""Print the tables of the keys of an ablation's file as Markdown, from its schema."""

from __future__ import annotations

import argparse

from shards.terminal.arguments import parse_path
from shards.terminal.program import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ablate-keys`."""
    parser.add_argument(
        "--into", type=parse_path, metavar="FILE", help="write them between the markers of this file instead of stdout"
    )


def run(options: argparse.Namespace) -> Outcome:
    """Return the tables, or write them into a file."""
    from tokenmill.experiments.reference import reference_markdown, write_reference_into

    if options.into is None:
        markdown = reference_markdown()
        return Outcome({"markdown": markdown}, markdown.split("\n"))
    changed = write_reference_into(options.into)
    told = f"{options.into}: {'updated' if changed else 'up to date'}"
    return Outcome({"into": str(options.into), "changed": changed}, [told])
