"""Compare runs: their last scores with standard errors, the differences from the first run, and what they took.

Tables on the terminal: each score of each run; steps, tokens, hours, dollars and tokens a second; the keys of the
recipes that differ. `--out` also writes a picture of each score over steps, tokens, time and dollars, and a page with
all of it. Runs may be still going, and of other tokenizers: their losses in nats a token are then not subtracted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shards.errors import InputError
from shards.terminal.arguments import add_runs, parse_path
from shards.terminal.program import Outcome

if TYPE_CHECKING:
    from trainer.results.comparison import Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    add_runs(parser)
    about = "folder for compare.html, compare.png and compare.svg (default: only the tables are printed)"
    parser.add_argument("--out", type=parse_path, metavar="DIR", help=about)


def run(options: argparse.Namespace) -> Outcome:
    """Compare the runs; draw them if asked to."""
    from trainer.results.comparison import compare_runs
    from trainer.results.runs import read_runs

    if len(options.runs) < 2:
        raise InputError(f"{options.runs[0]}: is one run. Expected two or more; `plot` draws one.")
    runs = read_runs(options.runs)
    comparison = compare_runs(runs)
    files: list[str] = []
    if options.out is not None:
        from trainer.results.comparison_page import write_comparison

        files = [str(path) for path in write_comparison(runs, comparison, options.out)]
    return Outcome({**comparison._asdict(), "files": files}, _show(comparison, files))


def _show(comparison: Comparison, files: list[str]) -> Iterator[str | list[dict[str, Any]]]:
    from trainer.results.comparison import show_changes, show_runs, show_scores

    yield show_scores(comparison)
    yield show_runs(comparison)
    yield show_changes(comparison) or "no key of the recipes differs"
    yield from comparison.notes
    yield from files
