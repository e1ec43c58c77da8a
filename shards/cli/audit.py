"""`python -m shards audit`: what is in the tokens; see `shards.audit.audit`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError
from shards.terminal.arguments import add_set, add_workers, positive_number, print_json, require_folder
from shards.terminal.command import PROBLEMS, WHOLE

if TYPE_CHECKING:
    from shards.terminal.arguments import Subparsers


def add_command(commands: Subparsers) -> None:
    """Add `audit`."""
    parser = commands.add_parser(
        "audit",
        help="look for what would spoil a model: strange ids, repeats, leaks; exit status 1 if a check is bad",
        description="Judge the tokens of a set: ids that are never seen, rare, or concentrated in a few documents; "
        "special ids in text; validation documents seen in training; repeats and near-duplicates; lengths.",
    )
    add_set(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder for tokens.parquet and audit.json (default: DIR.audit)"
    )
    parser.add_argument(
        "--rare",
        type=positive_number,
        metavar="N",
        help="call ids rare that occur fewer than N times (default: depends on the set's size)",
    )
    parser.add_argument(
        "--rows", type=positive_number, default=10, metavar="N", help="findings to show for each check (default: 10)"
    )
    add_workers(parser)
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from shards.audit.audit import audit
    from shards.cli.audit_display import print_audit
    from shards.cli.sets import print_set_problems
    from shards.errors import ShardSetError
    from shards.terminal.display import show_progress

    require_folder(options.set)
    try:
        with show_progress("audit") as progress:
            report = audit(options.set, out=options.out, workers=options.workers, rare=options.rare, progress=progress)
    except ShardSetError as error:
        print_set_problems(error.problems, as_json=options.json)
        return PROBLEMS
    except ValueError as error:
        raise InputError(f"audit: {error}") from error
    if options.json:
        print_json(report.to_dict() | {"out": str(report.out), "seconds": round(report.seconds, 3)})
    else:
        print_audit(report, rows=options.rows)
    return PROBLEMS if report.verdict == "bad" else WHOLE
