"""Draw a run from its metrics.jsonl, as PNG and SVG.

Training loss, smoothed with the raw one behind it, and validation loss; validation loss and bits per byte by source;
scores of eval sets and tasks; learning rate, throughput and dollars; where each phase of the run ends, and where keys
of its recipe changed. It works during training, and takes about a second. `compare` draws several runs.
"""

# pyright: reportUnknownMemberType=false
import argparse
from pathlib import Path

from shards.terminal.arguments import add_run, parse_path
from shards.terminal.program import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plot`."""
    add_run(parser)
    parser.add_argument(
        "--out", type=parse_path, metavar="DIR", help="folder for metrics.png and metrics.svg (default: RUN)"
    )


def run(options: argparse.Namespace) -> Outcome:
    """Run `plot`: draw the plots and return their paths."""
    from shards.stores.files import make_folder, write_bytes
    from trainer.results.picture import draw_run, render_figure
    from trainer.results.runs import read_run

    found = read_run(options.run)
    figure = draw_run(found)
    folder: Path = options.out or found.folder
    make_folder(folder)
    paths: list[str] = []
    for suffix in ("png", "svg"):
        write_bytes(folder / f"metrics.{suffix}", render_figure(figure, suffix))
        paths.append(str(folder / f"metrics.{suffix}"))
    return Outcome({"plots": paths}, [*found.describe_changes(), *paths])
