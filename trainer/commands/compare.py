"""Compare runs: their scores with standard errors, the differences from the first run, and their costs.

Scores are compared at the same number of training tokens: the last at which all were scored. A verdict, then tables
on the terminal: each score of each run; steps, tokens, hours, dollars and tokens a second; the keys of the recipes that
differ. Of one run, its scores and costs. `--out` also writes a picture of each score over steps, tokens, time and
dollars, and a page with all of it.
Runs may still be training, and may have different tokenizers: losses per token are then not compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from shards.terminal.arguments import add_runs, parse_path
from shards.terminal.program import Outcome, Part, Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    add_runs(parser)
    about = "folder for compare.html, compare.png and compare.svg (default: only the tables are printed)"
    parser.add_argument("--out", type=parse_path, metavar="DIR", help=about)


def run(options: argparse.Namespace) -> Outcome:
    """Run `compare`: compare the runs; draw them if asked to."""
    from trainer.results.comparison import compare_runs, write_comparison
    from trainer.results.runs import read_runs

    runs = read_runs(options.runs)
    data = compare_runs(runs) | {"files": list[str]()}
    if options.out is not None:
        data["files"] = [str(path) for path in write_comparison(runs, data, options.out)]
    return Outcome(data, _show(data))


def _show(data: Row) -> Iterator[Part]:
    from trainer.results.comparison import show_tables

    tables = show_tables(data)
    yield from data["verdict"]
    yield tables["scores"]
    yield tables["runs"]
    if len(data["runs"]) > 1:
        yield tables["changes"] or "no key of the recipes differs"
    yield from data["notes"]
    yield from data["files"]
