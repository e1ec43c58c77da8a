"""`python -m shards validate`: check a set; see `shards.validation.validate`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shards.errors import plural
from shards.terminal.arguments import add_set, add_threads, check_place, whole_number
from shards.terminal.display import print_json, printable
from shards.terminal.exit_status import COULD_NOT_RUN, PROBLEMS, WHOLE

if TYPE_CHECKING:
    from shards.terminal.arguments import Subparsers
    from shards.validation.validate import ValidationResult


def add_command(commands: Subparsers) -> None:
    """Add `validate`."""
    parser = commands.add_parser(
        "validate",
        help="check a set; exit status 0 valid, 1 problems, 2 could not run",
        description="Check a shard set.",
    )
    add_set(parser)
    parser.add_argument(
        "--level",
        choices=("quick", "full"),
        default="full",
        help="quick: everything except tokens and document tables (default: full)",
    )
    parser.add_argument(
        "--against-sources",
        type=whole_number,
        default=0,
        metavar="N",
        help="re-read N sampled documents from their sources and compare",
    )
    add_threads(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from shards.terminal.progress import show_progress
    from shards.validation.validate import validate

    check_place(options.set)
    with show_progress("validate", show=options.level == "full") as progress:
        report = validate(
            options.set,
            level=options.level,
            against_sources=options.against_sources,
            threads=options.threads,
            progress=progress,
        )
    if options.json:
        print_json(report.to_dict())
    else:
        _print_report(report)
    if report.problems:
        return PROBLEMS
    return COULD_NOT_RUN if report.not_run else WHOLE


def _print_report(report: ValidationResult) -> None:
    """Print the problems as a table, then one line that sums up."""
    from shards.cli.problems import print_problems
    from shards.terminal.progress import format_speed

    print_problems(report.problems)
    for reason in report.not_run:
        print(f"could not run: {printable(reason)}")
    number = len(report.problems)
    verdict = "whole" if report.ok else plural(number, "problem")
    if report.not_run and not report.problems:
        verdict = "no problem found, but not everything could be checked"
    speed = format_speed(report.tokens, report.seconds, "tokens") if report.level == "full" else ""
    time = f"{report.seconds:.2f} s{speed and f', {speed}'}"
    compared = (
        f", {plural(report.compared_documents, 'document')} compared with their sources"
        if report.compared_documents
        else ""
    )
    print(
        f"{printable(str(report.path))}: {verdict} ({report.level}: {plural(report.shards, 'shard')}, "
        f"{plural(report.tokens, 'token')}, {plural(report.documents, 'document')}{compared}, {time})"
    )
