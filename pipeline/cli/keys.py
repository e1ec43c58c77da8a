"""`keys`: list every key of a data recipe."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shards.terminal.arguments import parse_path
from shards.terminal.command_names import called_as
from shards.terminal.exit_status import WHOLE

if TYPE_CHECKING:
    from shards.terminal.arguments import Subparsers


def add_command(commands: Subparsers) -> None:
    """Add `keys`."""
    parser = commands.add_parser(
        "keys",
        help="list every key of a data recipe",
        description="Print the tables of a data recipe's keys as Markdown, from its schema.",
        epilog=f"`{called_as('trainer', 'keys')}` lists the keys of a train recipe.",
    )
    parser.add_argument(
        "--into", type=parse_path, metavar="FILE", help="write them between the markers of this file instead of stdout"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the keys, or write them into a file, and return the exit status."""
    from pipeline.recipe.reference import reference_markdown, write_reference_into

    if options.into is None:
        print(reference_markdown())
    else:
        changed = write_reference_into(options.into)
        print(f"{options.into}: {'updated' if changed else 'up to date'}")
    return WHOLE
