"""Remove from a build's work folder what the last published set did not use."""

from __future__ import annotations

import argparse

from pipeline.cli.flags import parse_build_place
from shards.errors import plural
from shards.terminal.amounts import format_size
from shards.terminal.program import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `prune`."""
    parser.add_argument("work", type=parse_build_place, metavar="WORK", help="the work folder, or its s3:// address")
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed; remove nothing")


def run(options: argparse.Namespace) -> Outcome:
    """Prune the folder, and return what was removed."""
    from pipeline.builder.kept import prune_work
    from shards.stores.open import open_writable_store

    removed = prune_work(open_writable_store(options.work), dry_run=options.dry_run)
    data = {"work": options.work, "dry_run": options.dry_run, "removed": removed}
    lines = [f"{one['stage']}: {plural(one['tasks'], 'task')}, {format_size(one['bytes'])}" for one in removed]
    total = format_size(sum(one["bytes"] for one in removed))
    return Outcome(
        data, [*lines, f"{total} {'would be removed' if options.dry_run else 'removed'} from {options.work}"]
    )
