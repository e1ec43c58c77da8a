"""Draw runs from their metrics.jsonl, as PNG and SVG.

Of one run: training loss, smoothed with the raw one behind it, and validation loss with the phases and their goals;
validation loss and bits per byte by source, and in the mix of each phase of the set; scores of eval sets and tasks;
learning rate, throughput and dollars. The set's phases are marked in every panel. Works while the run is going on.
About a second.

Of several runs: the same numbers over steps, with a colour for each run; `compare` has tables, too, and draws them over
tokens, time and dollars.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import argparse
from pathlib import Path

from shards.errors import InputError
from shards.terminal.arguments import add_runs, parse_path
from shards.terminal.program import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plot`."""
    add_runs(parser)
    about = "folder for metrics.png and metrics.svg (default: RUN); required with several runs"
    parser.add_argument("--out", type=parse_path, metavar="DIR", help=about)


def run(options: argparse.Namespace) -> Outcome:
    """Draw the plots and return their paths."""
    from trainer.results.comparison_plot import choose_axes, draw_runs, list_panels
    from trainer.results.run_plot import draw_run
    from trainer.results.runs import read_runs

    if len(options.runs) > 1 and options.out is None:
        raise InputError("--out: is missing. Expected a folder for the plots of several runs.")
    runs = read_runs(options.runs)
    if len(runs) == 1:
        figure = draw_run(runs[0].records, runs[0].recipe.phases, title=runs[0].recipe.name)
    else:
        figure = draw_runs(runs, list_panels(runs, lines=True), [choose_axes(runs)["steps"]], width=9)

    folder: Path = options.out or runs[0].folder
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(folder / "metrics.png"), str(folder / "metrics.svg")]
    for path in paths:
        figure.savefig(path, dpi=120)
    return Outcome({"plots": paths}, paths)
