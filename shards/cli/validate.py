"""Check a shard set. Exit status: 0 valid, 1 problems, 2 the set cannot be read."""

import argparse

from shards.errors import first_of, plural
from shards.terminal.arguments import add_set, add_threads
from shards.terminal.program import PROBLEMS, WHOLE, Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `validate`."""
    add_set(parser)
    parser.add_argument(
        "--level",
        choices=("quick", "full"),
        default="full",
        help="quick: everything except tokens and document tables (default: full)",
    )
    add_threads(parser)


def run(options: argparse.Namespace) -> Outcome:
    """Return the problems of a set that `validate` finds."""
    from shards.terminal.progress import show_progress
    from shards.validation.validate import validate

    with show_progress("validate", show=options.level == "full") as progress:
        report = validate(options.set, level=options.level, threads=options.threads, progress=progress)
    verdict = "valid" if report.ok else plural(len(report.problems), "problem")
    held = f"{plural(report.tokens, 'token')}, {plural(report.documents, 'document')}"
    figures = f" ({report.level} check: {plural(report.shards, 'shard')}, {held}, {report.seconds:.2f} s)"
    # Of a place without a manifest nothing was counted.
    last = f"{report.path}: {verdict}{figures if report.shards else ''}"
    shown = [*(f"error: {problem}" for problem in first_of(report.problems)), last]
    return Outcome(report.to_dict(), shown, WHOLE if report.ok else PROBLEMS)
