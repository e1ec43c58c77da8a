"""Plots of a run from its metrics.jsonl, as PNG and SVG, and TensorBoard events where that package is installed.

Loss with validation loss, learning rate, throughput and dollars over steps, every step drawn, with the ends of phases
marked. Works while the run is going on. About a second.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.errors import InputError

if TYPE_CHECKING:
    from trainer.config import PhaseConfig

PANELS = {"loss": "loss\nnats a token", "val_loss": "loss\nnats a token", "lr": "learning rate"}
PANELS |= {"tokens_per_s": "throughput\ntokens/s", "usd": "cost\ndollars"}
"""The panel, by its label, that each key of metrics.jsonl is drawn in."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder; the run may still be going")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for metrics.png and metrics.svg (default: RUN)")
    parser.epilog = "If the package tensorboard is installed, training writes events to RUN/tensorboard."


def run(options: argparse.Namespace) -> int:
    """Draw the plots and print their paths."""
    from trainer.metrics import METRICS_FILE, read_metrics
    from trainer.recipe import load_recipe

    if not (options.run / METRICS_FILE).is_file():
        raise InputError(f"{options.run / METRICS_FILE}: is missing. Expected the folder of a run.")
    recipe = load_recipe(options.run / "recipe.json")
    figure = draw(read_metrics(options.run), recipe.phases, title=recipe.name)
    folder: Path = options.out or options.run
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(folder / "metrics.png"), str(folder / "metrics.svg")]
    for path in paths:
        figure.savefig(path, dpi=120)
    print(json.dumps({"plots": paths}) if options.json else "\n".join(paths))
    return 0


def draw(records: list[dict[str, Any]], phases: list[PhaseConfig], *, title: str) -> Any:
    """Return a matplotlib figure of a run's metrics, one panel for each kind of number that they hold.

    Raises:
        InputError: there is nothing to draw.
    """
    from matplotlib.figure import Figure

    series = {key: [(r["step"], r[key]) for r in records if r.get(key) is not None] for key in PANELS}
    labels = list(dict.fromkeys(PANELS[key] for key in PANELS if series[key]))
    if not labels:
        raise InputError("metrics.jsonl: no step is logged yet; nothing to draw")
    figure = Figure(figsize=(10, 1 + 2.4 * len(labels)), layout="constrained")
    axes = figure.subplot_mosaic([[label] for label in labels], sharex=True)
    for key, points in series.items():
        if points:
            axes[PANELS[key]].plot(*zip(*points, strict=True), label=key, marker="." if key == "val_loss" else "")
    began, last = records[0]["step"] - 1, records[-1]["step"]
    for phase in phases:
        end = min(phase.until_step, last)
        if began < end:
            top, middle = axes[labels[0]], (began + end) / 2
            top.annotate(phase.name, (middle, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
        if began < phase.until_step <= last:
            for axis in axes.values():
                axis.axvline(phase.until_step, color="0.5", linestyle="--", linewidth=0.8)
        began = max(began, end)
    for label, axis in axes.items():
        axis.set_ylabel(label)
        axis.grid(visible=True, alpha=0.3)
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    figure.supxlabel("step")
    figure.suptitle(title)
    return figure


def open_events(run: Path) -> Callable[[dict[str, Any]], None] | None:
    """Return what writes a metrics line as TensorBoard events and flushes them; None where the package is missing."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    events = SummaryWriter(str(run / "tensorboard"))

    def write(record: dict[str, Any]) -> None:
        for key, value in record.items():
            if key != "step" and isinstance(value, int | float):
                events.add_scalar(key, value, record["step"])
        events.flush()

    return write
