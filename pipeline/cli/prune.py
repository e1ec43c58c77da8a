"""`prune`: remove from a work folder what the last published set did not use."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from pipeline.cli.flags import parse_build_place
from shards.errors import plural
from shards.terminal.amounts import format_size
from shards.terminal.display import print_lines
from shards.terminal.exit_status import WHOLE

if TYPE_CHECKING:
    from shards.terminal.arguments import Subparsers


def add_command(commands: Subparsers) -> None:
    """Add `prune`."""
    parser = commands.add_parser(
        "prune",
        help="remove earlier results from a work folder",
        description="Remove from a build's work folder what the last published set did not use.",
    )
    parser.add_argument("work", type=parse_build_place, metavar="WORK", help="the work folder, or its s3:// address")
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed; remove nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prune the folder, print what was removed and return the exit status."""
    from pipeline.builder.kept import prune_work
    from shards.stores.open import open_writable_store

    removed = prune_work(open_writable_store(options.work), dry_run=options.dry_run)
    if options.json:
        stages = [asdict(stage) for stage in removed]
        print(json.dumps({"work": options.work, "dry_run": options.dry_run, "removed": stages}, indent=2))
        return WHOLE
    lines = [f"{one.stage}: {plural(one.tasks, 'task')}, {format_size(one.bytes)}" for one in removed]
    total = format_size(sum(one.bytes for one in removed))
    print_lines([*lines, f"{total} {'would be removed' if options.dry_run else 'removed'} from {options.work}"])
    return WHOLE
