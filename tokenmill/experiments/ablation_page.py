"""The files that show an ablation: a page that needs no network, with its picture as PNG and SVG beside it.

The picture has each score over tokens, and the arms' differences from the first one with intervals.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import base64
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.report.visible_text import shorten
from shards.terminal.program import Row
from tokenmill.experiments.ablation import Ablation
from tokenmill.experiments.answer import list_records, show_tables
from trainer.results.comparison_plot import RUN_STYLES, label_axis, render_figure, render_results, write_page
from trainer.results.curves import LOSS_UNITS, MARKED, Curve, plot_style, read_curve, scale_score
from trainer.results.runs import TrainingRun, read_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_ablation(ablation: Ablation, answer: Row) -> list[Path]:
    """Write ablation.html, ablation.png and ablation.svg to the folder of the ablation, and return their paths.

    Raises:
        OSError: a file cannot be written.
    """
    figure = draw_ablation(read_arms(ablation), answer["scores"])
    page = render_ablation(answer, list_records(ablation), render_figure(figure))
    return write_page(ablation.out / "ablation.html", page, figure)


def read_arms(ablation: Ablation) -> dict[str, list[TrainingRun]]:
    """Return the runs of each arm, named `seed N`, from the results of the trainings; without those that failed."""
    runs: dict[str, list[TrainingRun]] = {arm.name: [] for arm in ablation.arms}
    for training in ablation.trainings:
        if not training.result.failed:
            run = read_run(ablation.results_folder(training))
            runs[training.arm.name].append(replace(run, name=f"seed {training.seed}"))
    return runs


def render_ablation(answer: Row, records: Sequence[Mapping[str, Any]], picture: bytes) -> str:
    """Return the page of an ablation.

    Args:
        answer: what the tables say.
        records: of the documents of each arm.
        picture: the SVG of the curves and the differences.
    """
    values = {
        "title": answer["name"],
        "failed": answer["failed"],
        "notes": answer["notes"],
        "records": [record for record in records if record["counts"]],
        "picture": base64.b64encode(picture).decode("ascii"),
    }
    return render_results(Path(__file__).parent / "templates", "ablation", values | show_tables(answer))


WIDTH_INCHES, PANEL_INCHES = 10.0, 2.3
ARM_INCHES = 0.3
"""Height of the row of an arm among the differences."""
_NAME_CHARACTERS, _LEGEND_CHARACTERS = 24, 120
"""Of an arm's name at an axis, and of a row of the legend."""


def average_score(runs: Sequence[TrainingRun], score: str) -> Curve:
    """Return the mean of a score over runs, at the tokens where all of them have it.

    Its errors are the standard deviations over the runs; 0 of one run.
    """
    # Values by tokens; a point that a run lacks is left out.
    values: dict[float, list[float]] = {}
    for run in runs:
        curve = read_curve(run.records, score, "tokens")
        for tokens, value in zip(curve.x, curve.y, strict=True):
            values.setdefault(tokens, []).append(value)
    whole = {tokens: own for tokens, own in sorted(values.items()) if len(own) == len(runs)}
    means = [statistics.fmean(own) for own in whole.values()]
    return Curve(list(whole), means, [statistics.stdev(own) if len(own) > 1 else 0.0 for own in whole.values()])


def draw_ablation(runs: Mapping[str, Sequence[TrainingRun]], scores: Sequence[Mapping[str, Any]]) -> Figure:
    """Return a figure with a row of two panels for each score: its curves, and the differences from the first arm.

    Args:
        runs: the runs of each arm, in the order of their colours; arms without a run have an empty list.
        scores: the rows of the answer's scores.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    # A row of panels for each score; a style and a colour for each arm.
    names = list(dict.fromkeys(row["score"] for row in scores))
    styles = dict(zip(runs, itertools.cycle(RUN_STYLES), strict=False))
    height = max(PANEL_INCHES, 0.9 + ARM_INCHES * len(runs))
    with plot_style():
        figure = Figure(figsize=(WIDTH_INCHES, 0.7 + height * len(names)), layout="constrained")
        grid = figure.subplots(len(names), 2, squeeze=False, width_ratios=[5, 4])
        for (curves, differences), name in zip(grid, names, strict=True):
            own = [row for row in scores if row["score"] == name]
            _draw_curves(curves, runs, name, styles)
            curves.set_ylabel(f"{name}\n{own[0]['unit']}")
            if any(map(len, runs.values())):  # a logarithmic axis needs a value
                scale_score(curves, own[0]["unit"])
            _draw_differences(differences, own, styles)
        handles = [Line2D([], [], linestyle=style, color=colour, linewidth=2) for style, colour in styles.values()]
        columns = max(1, min(4, _LEGEND_CHARACTERS // (max(map(len, styles)) + 8)))
        figure.legend(handles, list(styles), loc="outside upper left", ncols=columns, frameon=False)
    return figure


def _draw_curves(
    axis: Axes, runs: Mapping[str, Sequence[TrainingRun]], score: str, styles: Mapping[str, tuple[str, str]]
) -> None:
    """Draw a score of each arm: every seed thin, their mean bold, and a band of one standard deviation."""
    for arm, own in runs.items():
        style, colour = styles[arm]
        for run in own:
            curve = read_curve(run.records, score, "tokens")
            axis.plot(curve.x, curve.y, color=colour, linestyle=style, linewidth=0.7, alpha=0.5)
        mean = average_score(own, score)
        look: dict[str, Any] = {"linestyle": style, "linewidth": 2, **MARKED}
        axis.plot(mean.x, mean.y, color=colour, **look)
        if len(own) > 1:
            middle, spread = np.asarray(mean.y), np.asarray(mean.stderr, np.float64)
            axis.fill_between(mean.x, middle - spread, middle + spread, color=colour, alpha=0.15, linewidth=0)
    axis.grid(visible=True, alpha=0.25)
    label_axis(axis, ("tokens", 1, "tokens"))


def _draw_differences(axis: Axes, rows: Sequence[Mapping[str, Any]], styles: Mapping[str, tuple[str, str]]) -> None:
    """Draw the difference of each arm from the first one with its interval, the arms from top to bottom."""
    first, others = rows[0]["arm"], rows[1:]
    for height, row in enumerate(others):
        colour = styles[row["arm"]][1]
        if row["difference"] is None:
            axis.annotate(
                "not known", (0, height), xytext=(6, 0), textcoords="offset points", va="center", color="0.45"
            )
            continue
        if row["low"] is not None:
            axis.plot([row["low"], row["high"]], [height, height], color=colour, linewidth=2)
        # A hollow mark: without an interval, or one that holds 0.
        seen = row["low"] is not None and (row["low"] > 0 or row["high"] < 0)
        axis.plot(row["difference"], height, "o", color=colour, markerfacecolor=colour if seen else "white")
    axis.axvline(0, color="0.3", linewidth=0.8)
    axis.set_yticks(range(len(others)), [shorten(row["arm"], _NAME_CHARACTERS) for row in others])
    axis.set_ylim(len(others) - 0.5, -0.5)
    # The axis is even on both sides of 0.
    widest = max((abs(row[key]) for row in others for key in ("difference", "low", "high") if row[key]), default=1.0)
    axis.set_xlim(-1.1 * widest, 1.1 * widest)
    axis.locator_params(axis="x", nbins=5)
    better = "better: left" if rows[0]["unit"] in LOSS_UNITS else "better: right"
    axis.set_xlabel(f"less {shorten(first, _NAME_CHARACTERS)}\n{rows[0]['unit']} ({better})")
    axis.grid(visible=True, axis="x", alpha=0.25)
