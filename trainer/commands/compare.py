"""Compare runs: their scores with standard errors, the differences from the first run, and their costs.

Scores are compared at the same number of training tokens: the last at which all were scored. It prints a verdict and
tables: each score of each run; steps, tokens, hours, dollars and tokens per second; the bill of each run by phases,
with dollars for 1.0 of loss; the keys of the recipes that differ. For a single run, it prints scores and the bill.
`--out` also writes a picture of each score over steps, tokens, time and dollars, and a page with all of it and the
samples of all milestones.

Runs may still be training, and may have different tokenizers: losses per token are then not compared.
"""

import argparse

from shards.terminal.arguments import parse_path
from shards.terminal.program import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    about = "the folder of a training run; several may be given"
    parser.add_argument("runs", type=parse_path, nargs="+", metavar="RUN", help=about)
    about = "folder for compare.html, compare.png and compare.svg (default: only the tables are printed)"
    parser.add_argument("--out", type=parse_path, metavar="DIR", help=about)


def run(options: argparse.Namespace) -> Outcome:
    """Run `compare`: compare the runs; draw them if asked to."""
    from trainer.results.comparison import compare_runs, show_tables, write_comparison
    from trainer.results.runs import read_runs

    runs = read_runs(options.runs)
    data = compare_runs(runs) | {"files": list[str]()}
    if options.out is not None:
        data["files"] = [str(path) for path in write_comparison(runs, data, options.out)]
    tables = show_tables(data)
    changes = [tables["changes"] or "no key of the recipes differs"] if len(runs) > 1 else []
    shown = [tables["scores"], tables["runs"], tables["bill"], *changes]
    return Outcome(data, [*data["verdict"], *shown, *data["notes"], *data["files"]])
