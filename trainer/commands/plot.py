"""Draw a run from its metrics.jsonl, as PNG and SVG.

Training loss, smoothed with the raw one behind it, and validation loss with the phases and their goals; validation loss
and bits per byte by source, and in the mix of each phase of the set; learning rate, throughput and dollars. The set's
phases are marked in every panel. Works while the run is going on. About a second.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false
from __future__ import annotations

import argparse
import bisect
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.errors import InputError, plural
from shards.terminal.arguments import add_run, parse_path
from shards.terminal.program import Outcome

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from trainer.metrics import Record
    from trainer.recipe import PhaseConfig

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#D55E00", "#009E73", "#CC3311", "0.45"
SOURCE_COLOURS = (ORANGE, BLUE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""Told apart by colour-blind readers too. Source: Okabe and Ito."""
MIX_COLOURS = ("#000000", "#882255", "#DDAA33", "#555555", "#999933", "#44AA99")
GROUP_PANELS = {
    "val_loss": "validation loss\nby source, nats per token",
    "val_bits_per_byte": "validation bits per byte\nby source",
}
"""Panels of a validation line's numbers by source and by phase of the set's mix, and the words at their axes."""
LINE_PANELS = {
    "lr": ("learning rate", GREY),
    "tokens_per_s": ("tokens per second", BLUE),
    "usd": ("US dollars", GREEN),
}
"""Panels of one number of each step, from 0, with the words at their axes and their colours."""
SMOOTHED_PARTS = 100
"""Curves are smoothed by the mean of this part of all steps."""
SMOOTHED_FROM_STEPS = 40
"""With fewer steps, nothing is smoothed."""
RASTER_FROM_POINTS = 5_000
"""A raw curve with more points is drawn as pixels in the SVG, which would take megabytes otherwise."""

Curve = tuple[list[int], list[float]]
"""Steps, and a value for each."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plot`."""
    add_run(parser)
    parser.add_argument(
        "--out", type=parse_path, metavar="DIR", help="folder for metrics.png and metrics.svg (default: RUN)"
    )
    parser.epilog = "If the package tensorboard is installed, training writes events to RUN/tensorboard."


def run(options: argparse.Namespace) -> Outcome:
    """Draw the plots and return their paths."""
    from trainer.metrics import METRICS_FILE, read_metrics
    from trainer.recipe import load_train_recipe
    from trainer.run_folder import RECIPE_FILE

    if not (options.run / METRICS_FILE).is_file():
        raise InputError(f"{options.run / METRICS_FILE}: is missing. Expected the folder of a training run.")
    recipe = load_train_recipe(options.run / RECIPE_FILE)
    figure = draw_plots(read_metrics(options.run), recipe.phases, title=recipe.name)
    folder: Path = options.out or options.run
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(folder / "metrics.png"), str(folder / "metrics.svg")]
    for path in paths:
        figure.savefig(path, dpi=120)
    return Outcome({"plots": paths}, paths)


def draw_plots(records: list[Record], phases: list[PhaseConfig], *, title: str) -> Figure:
    """Return a figure of a run's metrics: a panel for each kind of number that the lines have.

    Raises:
        InputError: there is nothing to draw.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, FuncFormatter

    from trainer.commands.plot_marks import mark_mix, mark_phases
    from trainer.phases.mix_phases import list_stretches

    # Choose the panels: one for each kind of number that the run has.
    curves = {key: _read_curve(records, key) for key in ("loss", "val_loss", *LINE_PANELS)}
    sources = {key: _read_groups(records, f"{key}_by_source") for key in GROUP_PANELS}
    stretches = list_stretches(records)
    heights = {
        "loss": 3.0 if curves["loss"][0] or curves["val_loss"][0] else 0,
        **{f"{key}_by_source": 2.0 if len(sources[key]) > 1 else 0 for key in GROUP_PANELS},
        **{key: 1.0 if any(curves[key][1]) else 0 for key in LINE_PANELS},
    }
    panels = [panel for panel, height in heights.items() if height]
    if not panels:
        raise InputError("metrics.jsonl: no step is logged yet; nothing to draw")

    # Draw them. Names come from recipes: `$` in a name must not start a formula.
    with mpl.rc_context({"text.parse_math": False, "axes.spines.top": False, "axes.spines.right": False}):
        ratios = [heights[panel] for panel in panels]
        figure = Figure(figsize=(11, 1.2 + 1.35 * sum(ratios)), layout="constrained")
        axes = figure.subplot_mosaic([[panel] for panel in panels], sharex=True, height_ratios=ratios)
        if "loss" in axes:
            borders = [stretch.begin for stretch in stretches[1:]]
            _draw_curve(axes["loss"], curves["loss"], "training loss", BLUE, borders=borders)
            if curves["val_loss"][0]:
                point: dict[str, Any] = {"marker": "o", "markersize": 3.5, "clip_on": False}
                axes["loss"].plot(*curves["val_loss"], color=ORANGE, label="validation loss", **point)
            _draw_goals(axes["loss"], records, phases)
            _scale_loss(axes["loss"], "loss, nats per token")

        # Every source has its colour in both panels; the mix of a phase is a dashed line that no border makes jump.
        colours = _choose_colours(sources["val_loss"], SOURCE_COLOURS)
        for key, label in GROUP_PANELS.items():
            if (axis := axes.get(f"{key}_by_source")) is not None:
                _draw_groups(axis, sources[key], colours, "", marker=".")
                mixes = _read_groups(records, f"{key}_by_mix")
                dashed = (0, (4, 2))
                _draw_groups(axis, mixes, _choose_colours(mixes, MIX_COLOURS), "in the mix of ", linestyle=dashed)
                _scale_loss(axis, label)

        for key in LINE_PANELS.keys() & axes.keys():
            label, colour = LINE_PANELS[key]
            if key == "tokens_per_s":
                _draw_curve(axes[key], curves[key], "throughput", colour)
                axes[key].yaxis.set_major_formatter(EngFormatter(sep=" "))
            else:
                paid = f"cost so far: ${curves[key][1][-1]:,.2f}"
                axes[key].plot(*curves[key], color=colour, label=paid if key == "usd" else label)
            axes[key].set_ylabel(label)
            axes[key].set_ylim(bottom=0)

        # Phases of the run and of the set, legends, and the axis of steps.
        steps = records[0]["step"] - 1, records[-1]["step"]
        rows = mark_phases([axes[panel] for panel in panels], phases, steps)
        mark_mix([axes[panel] for panel in panels], stretches, steps, row=rows)
        for axis in axes.values():
            axis.margins(x=0)
            axis.grid(visible=True, alpha=0.25)
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small")
        last = axes[panels[-1]]
        last.set_xlabel("step")
        last.set_xlim(*steps)
        last.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
        figure.suptitle(describe_run(records, title), x=0.01, ha="left", fontweight="bold")
    return figure


def _read_curve(records: list[Record], key: str) -> Curve:
    """Return the values of a key over steps."""
    found = [record for record in records if record.get(key) is not None]
    return [record["step"] for record in found], [record[key] for record in found]


def _read_groups(records: list[Record], key: str) -> dict[str, Curve]:
    """Return the curves of each source or mix, such as `val_loss_by_source`, the highest at the end first."""
    names: list[str] = list(dict.fromkeys(name for record in records for name in record.get(key) or {}))
    curves: dict[str, Curve] = {}
    for name in names:
        lines = [{"step": record["step"], "value": record[key].get(name)} for record in records if record.get(key)]
        if (curve := _read_curve(lines, "value"))[0]:
            curves[name] = curve
    return dict(sorted(curves.items(), key=lambda item: -item[1][1][-1]))


def _choose_colours(names: Iterable[str], colours: Sequence[str]) -> dict[str, str]:
    return dict(zip(sorted(names), itertools.cycle(colours), strict=False))


def _draw_groups(axis: Axes, curves: dict[str, Curve], colours: dict[str, str], prefix: str, **style: Any) -> None:
    """Draw a curve for each name; the legend has its last value."""
    for name, curve in curves.items():
        label = f"{curve[1][-1]:.3f}  {prefix}{name}"
        axis.plot(*curve, color=colours[name], clip_on=False, label=label, **style)


def smooth(values: list[float], width: int) -> npt.NDArray[np.float64]:
    """Smooth a plot's values: return the mean of `width` values around each one, float64 `(len(values),)`.

    Near the beginning, where a loss falls steeply, as few values follow as come before; near the end fewer follow.
    """
    import numpy as np

    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    before = np.minimum(index, width // 2)
    after = np.minimum(before, len(values) - 1 - index)
    starts, stops = index - before, index + after + 1
    return (sums[stops] - sums[starts]) / (stops - starts)


def describe_run(records: list[Record], title: str) -> str:
    """Return the line above a plot: the run's name, its steps and tokens, and its losses at the end."""
    from trainer.metrics import last_record

    parts = [f"{title}: {plural(records[-1]['step'], 'step')}"]
    if tokens := last_record(records, "tokens").get("tokens"):
        parts.append(f"{plural(tokens, 'token')}")
    for key, name in (("loss", "training loss"), ("val_loss", "validation loss")):
        if (loss := last_record(records, key).get(key)) is not None:
            parts.append(f"{name} {loss:.3f}")
    return ", ".join(parts)


def _draw_curve(axis: Axes, curve: Curve, name: str, colour: str, *, borders: Sequence[float] = ()) -> None:
    """Draw a curve smoothed, with the raw one pale behind it; a short one as it is.

    Steps on both sides of a border are not averaged, since the loss may jump there; a step belongs to what it ends in.
    """
    steps, values = curve
    if len(values) < SMOOTHED_FROM_STEPS:
        axis.plot(steps, values, color=colour, label=name)
        return
    raw: dict[str, Any] = {"alpha": 0.25, "linewidth": 0.8, "rasterized": len(values) > RASTER_FROM_POINTS}
    axis.plot(steps, values, color=colour, label=f"{name}, each step", **raw)
    width = max(10, len(values) // SMOOTHED_PARTS)
    label = f"{name}, mean of {plural(width, 'step')}"
    cuts = sorted({bisect.bisect_right(steps, border) for border in borders} | {0, len(steps)})
    for begin, end in itertools.pairwise(cuts):
        axis.plot(steps[begin:end], smooth(values[begin:end], width), color=colour, label=label)
        label = "_"  # one entry of the legend


def _scale_loss(axis: Axes, label: str) -> None:
    """Give a panel of losses a logarithmic axis with plain numbers: a fall from 3.0 to 2.9 shows after one from 10."""
    from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_ylabel(label)


def _draw_goals(axis: Axes, records: list[Record], phases: list[PhaseConfig]) -> None:
    """Draw the loss that each phase has to reach, over its steps so far, with whether it did."""
    from trainer.phases.ledger import summarise_phases

    rows = {row["phase"]: row for row in summarise_phases(phases, records)}
    began = 0
    for phase in phases:
        row = rows.get(phase.name)
        if phase.goal and row:
            key, relation, bound = phase.goal.split()
            colour, outcome = {None: (GREY, "open"), True: (GREEN, "met"), False: (RED, "missed")}[row["goal_met"]]
            name = "validation loss" if key == "val_loss" else "training loss"
            label = f"goal of {phase.name}:\n{name} {relation} {bound}, {outcome}"
            end = min(phase.until_step, records[-1]["step"])
            axis.plot([began, end], [float(bound)] * 2, color=colour, linestyle=":", label=label)
        began = phase.until_step
