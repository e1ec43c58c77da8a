"""Pictures of runs: a row of panels for each number, a column for each thing that it is drawn over.

`plot` draws all numbers of one run over its steps. `compare` draws the losses and scores of several runs over steps,
tokens, time and dollars.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.errors import plural
from shards.format.arrays import Float64s
from shards.terminal.display import format_value, printable
from trainer.evaluation.scores import PERPLEXITY, VALIDATION_SCORES, list_scores, read_score, show_score, unit_of
from trainer.ledger import show_bill
from trainer.metrics import Record, last_record
from trainer.results.runs import TrainingRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""Told apart by colour-blind readers too. Source: Okabe and Ito."""
STYLES = tuple(itertools.product(("-", "--", ":", "-."), COLOURS))
"""The style of line and the colour of each curve of a panel; curves beyond the colours take the next style."""
SMOOTHED_FROM_STEPS, SMOOTHED_PARTS = 40, 100
"""A curve of at least so many steps is smoothed, by the mean of this part of them."""
NAMES = {"loss": "training loss", "val_loss": "validation loss", "val_bits_per_byte": "validation"}
"""The words for a number; a score of an eval set or task has its own name."""
SIZES = {"lr": "learning rate", "tokens_per_s": "tokens per second", "usd": "US dollars"}
"""Numbers of each step that begin at 0, and the words for them."""
MOST_NAME = 40
"""Characters that are drawn of a name: of a run that goes by its path, the last ones."""
SMOOTHED = ("loss", *SIZES)
"""Numbers of each step, which are drawn as the mean of some steps, and in a panel of few curves each step behind it."""

Against = tuple[str, float, str]
"""What numbers are drawn over: its key in metrics.jsonl, how many of its units are one of the axis, the label."""
STEPS: Against = ("step", 1, "steps")

Curve = list[tuple[float, float, float | None]]
"""A number of a run over another, such as steps or dollars: that one, the number, its standard error if it is known."""
Panel = tuple[str, str, dict[str, tuple[list[Record], str]]]
"""The words at a panel's axis, its unit or "", and by name the lines of the metrics and the key of each curve."""


def read_curve(records: Iterable[Record], key: str, against: str = "step") -> Curve:
    """Return a number or a score of a run's metrics over another number of the lines, such as `tokens`."""
    curve: Curve = []
    for record in records:
        score = read_score(record, key)
        if score["value"] is not None and against in record:
            curve.append((record[against], score["value"], score["stderr"]))
    return curve


def smooth(values: Sequence[float] | Float64s, width: int) -> Float64s:
    """Smooth a curve's values: return the mean of each and those before it, `width` in all, float64 `(values,)`."""
    sums = np.convolve(values, np.ones(width))[: len(values)]
    return sums / np.minimum(np.arange(1, len(values) + 1), width)


def draw_run(run: TrainingRun) -> Figure:
    """Draw the picture of all numbers of a run over its steps, with where its phases end and its recipe changed."""
    figure = draw_panels([*_list_numbers(run.records)], [STEPS])
    for phase in run.recipe.phases:
        if phase.until_step <= run.records[-1]["step"]:
            for axis in figure.axes:
                axis.axvline(phase.until_step, color="0.5", linestyle="--", linewidth=0.8)
            top = figure.axes[0]
            top.annotate(
                printable(phase.name),
                (phase.until_step, 1.0),
                xycoords=top.get_xaxis_transform(),
                rotation=30,
                va="bottom",
                fontsize="small",
                parse_math=False,
            )
    for axis in figure.axes:
        for change in run.record.changes:
            axis.axvline(change.after_step, color="0.5", linestyle=":", linewidth=0.8)
    size = f"{plural(run.records[-1]['step'], 'step')}, {plural(int(run.last('tokens') or 0), 'token')}"
    if rows := show_bill(run.draw_up_bill()):
        cells = [[key.replace("_", " ") for key in rows[0]]]
        cells += [[printable(format_value(value)) for value in row.values()] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        table = "\n".join("  ".join(map(str.ljust, row, widths)) for row in cells)
        figure.supxlabel(table, x=0.01, ha="left", family="monospace", fontsize="small", parse_math=False)
    title = "\n".join([f"{run.recipe.name}: {size}", *(text[:150] for text in run.describe_changes())])
    figure.suptitle(printable(title, keep="\n"), x=0.01, ha="left", fontweight="bold", parse_math=False)
    return figure


def _list_numbers(records: list[Record]) -> Iterator[Panel]:
    losses = [key for key in ("loss", "val_loss") if any(key in record for record in records)]
    names = dict(NAMES)
    if perplexity := last_record(records, PERPLEXITY).get(PERPLEXITY):
        names["val_loss"] += f", perplexity {perplexity:.2f}"
    yield ("loss", "nats per token", {names[key]: (records, key) for key in losses})
    for key in ("val_loss", "val_bits_per_byte"):
        found = [(record["step"], record[f"{key}_by_source"]) for record in records if f"{key}_by_source" in record]
        names = dict.fromkeys(name for _, losses in found for name in losses)
        lines = {
            name: ([{"step": step, "value": losses.get(name)} for step, losses in found], "value") for name in names
        }
        yield (f"{NAMES[key]} by source", unit_of(key), lines if len(names) > 1 else {})
    scores = [name for name in list_scores(records) if name not in VALIDATION_SCORES]
    for unit in ("bits per byte", "accuracy"):
        lines = {name: (records, name) for name in scores if unit_of(name) == unit}
        yield ("eval sets and tasks", unit, lines)
    for key, label in SIZES.items():
        yield (label, "", {label: (records, key)} if any(record.get(key) for record in records) else {})


def draw_runs(runs: Sequence[TrainingRun], axes: Sequence[Against]) -> Figure:
    """Draw the picture of the training loss and every score of several runs, each with a colour for each run."""
    panels = [
        (NAMES.get(key, key), unit_of(key), {run.name: (run.records, key) for run in runs})
        for key in ["loss", *list_scores([record for run in runs for record in run.records])]
        if key != PERPLEXITY  # the loss again
    ]
    return draw_panels(panels, axes)


def choose_axes(runs: Sequence[TrainingRun]) -> dict[str, Against]:
    """Return what pictures can draw the numbers of runs over: steps, and what a run's metrics have, such as a price."""
    hours = max(run.last("seconds") or 0.0 for run in runs) >= 3600
    axes: dict[str, Against] = {
        "tokens": ("tokens", 1, "tokens"),
        "time": ("seconds", 3600, "hours") if hours else ("seconds", 60, "minutes"),
        "dollars": ("usd", 1, "US dollars"),
    }
    return {"steps": STEPS} | {name: axis for name, axis in axes.items() if any(run.last(axis[0]) for run in runs)}


def draw_panels(panels: Sequence[Panel], axes: Sequence[Against]) -> Figure:
    """Return a picture of runs with a row for each panel that has a number, and a column for each of the axes."""
    panels = [panel for panel in panels if any(itertools.starmap(read_curve, panel[2].values()))]
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, StrMethodFormatter

    # Names come from recipes: `$` must not start a formula.
    with mpl.rc_context({"text.parse_math": False, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(5 + 4 * len(axes), 0.8 + 2.1 * len(panels)), layout="constrained")
        grid = figure.subplots(len(panels), len(axes), sharex="col", sharey="row", squeeze=False)
        for row, (words, unit, lines) in zip(grid, panels, strict=True):
            for axis, (key, scale, _) in zip(row, axes, strict=True):
                for (name, (records, number)), (style, colour) in zip(
                    lines.items(), itertools.cycle(STYLES), strict=False
                ):
                    curve = [(at / scale, y, error) for at, y, error in read_curve(records, number, key)]
                    shown = printable(name if len(name) <= MOST_NAME else f"...{name[-MOST_NAME:]}")
                    smoothed, raw = number in SMOOTHED, len(lines) < 3
                    _draw_curve(axis, curve, shown, smoothed=smoothed, raw=raw, color=colour, linestyle=style)
                _scale(axis, unit)
                axis.grid(visible=True, alpha=0.25)
                axis.xaxis.set_major_formatter(
                    EngFormatter(sep=" ") if key == "tokens" else StrMethodFormatter("{x:,g}")
                )
            row[0].set_ylabel(f"{words}\n{unit}".strip())
            # Every curve is drawn over steps; a run may lack what the last column is over.
            curves = row[0].get_legend_handles_labels()
            row[-1].legend(*curves, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small")
        for axis, (_, _, label) in zip(grid[-1], axes, strict=True):
            axis.set_xlabel(label)
            axis.set_xlim(left=0)  # only now, since it keeps the right end: a last validation takes time, too
        figure.align_ylabels()
    return figure


def _draw_curve(axis: Axes, curve: Curve, name: str, *, smoothed: bool, raw: bool, **style: Any) -> None:
    """Draw in a panel a number of each step, smoothed; or a score, with its last value and one standard error."""
    if not curve:
        return
    x, y, stderr = np.array(curve, np.float64).T  # an unknown error is NaN, and not drawn
    if not smoothed:
        label = f"{name}: {show_score(*curve[-1][1:])}"
        axis.plot(x, y, label=label, marker="o", markersize=3.5, clip_on=False, **style)
        if not np.isnan(stderr).all():
            axis.fill_between(x, y - stderr, y + stderr, color=style["color"], alpha=0.15, linewidth=0)
        return
    if len(y) >= SMOOTHED_FROM_STEPS:
        if raw:
            axis.plot(x, y, alpha=0.25, linewidth=0.8, rasterized=True, **style)
        width = max(10, len(y) // SMOOTHED_PARTS)
        y, name = smooth(y, width), f"{name}, mean of {plural(width, 'step')}"
    axis.plot(x, y, label=name, **style)


def _scale(axis: Axes, unit: str) -> None:
    """Scale a picture's axis by its unit: losses by logarithms: a fall from 3.0 to 2.9 shows after one from 10."""
    from matplotlib.ticker import MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter

    if unit == "accuracy":
        axis.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    elif unit:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]))
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
    else:
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def render_figure(figure: Figure, suffix: str) -> bytes:
    """Return a picture as a file, `svg` or `png`."""
    file = io.BytesIO()
    with warnings.catch_warnings():  # a character that the font does not have is drawn as a box
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(file, format=suffix, dpi=120, bbox_inches="tight")  # no label is cut off
    return file.getvalue()
