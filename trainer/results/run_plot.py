"""The plot of one run.

Training loss, smoothed with the raw one behind it, and validation loss with the phases and their goals; validation loss
and bits per byte by source, and in the mix of each phase of the set; scores of eval sets and tasks; learning rate,
throughput and dollars. The set's phases are marked in every panel.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false
from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from shards.errors import InputError, plural
from trainer.metrics import Record, last_record
from trainer.phases.ledger import summarise_phases
from trainer.phases.mix_phases import Stretch, list_stretches
from trainer.recipe import PhaseConfig
from trainer.results.curves import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    RED,
    VALIDATION_SCORES,
    Curve,
    draw_score,
    draw_steps,
    list_scores,
    plot_style,
    read_curve,
    scale_score,
    unit_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIX_COLOURS = ("#000000", "#882255", "#DDAA33", "#555555", "#999933", "#44AA99")
GROUP_PANELS = {
    "val_loss": "validation loss\nby source, nats per token",
    "val_bits_per_byte": "validation bits per byte\nby source",
}
"""Panels of a validation line's numbers by source and by phase of the set's mix, and the words at their axes."""
SCORE_PANELS = {
    "bits per byte": "eval sets and tasks\nbits per byte",
    "accuracy": "eval tasks\naccuracy",
}
"""Panels of the scores of eval sets and tasks, by unit, and the words at their axes."""
LINE_PANELS = {
    "lr": ("learning rate", GREY),
    "tokens_per_s": ("tokens per second", BLUE),
    "usd": ("US dollars", GREEN),
}
"""Panels of one number of each step, from 0, with the words at their axes and their colours."""
Curves = dict[str, Curve]
"""Curves by the names of what they are of."""


def draw_run(records: list[Record], phases: list[PhaseConfig], *, title: str) -> Figure:
    """Return a figure of one run's metrics over steps: a panel for each kind of number that the lines have.

    Raises:
        InputError: there is nothing to draw.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    stretches = list_stretches(records)
    panels = list(_list_panels(records, phases))
    if not panels:
        raise InputError("metrics.jsonl: no step is logged yet; nothing to draw")
    with plot_style():
        heights = [height for _, height, _ in panels]
        figure = Figure(figsize=(11, 1.2 + 1.35 * sum(heights)), layout="constrained")
        grid = figure.subplots(len(panels), sharex=True, height_ratios=heights, squeeze=False)
        axes: list[Axes] = [row[0] for row in grid]
        for axis, (label, _, draw) in zip(axes, panels, strict=True):
            draw(axis)
            axis.set_ylabel(label)

        # Phases of the run and of the set, legends, and the axis of steps.
        steps = records[0]["step"] - 1, records[-1]["step"]
        mark_phases(axes, phases, steps)
        mark_mix(axes, stretches)
        for axis in axes:
            axis.margins(x=0)
            axis.grid(visible=True, alpha=0.25)
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small")
        axes[-1].set_xlabel("step")
        axes[-1].set_xlim(*steps)
        axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
        figure.suptitle(describe_run(records, title), x=0.01, ha="left", fontweight="bold")
    return figure


Panel = tuple[str, float, Callable[["Axes"], None]]
"""The words at a panel's axis, its height, and what draws it."""


def _list_panels(records: list[Record], phases: list[PhaseConfig]) -> Iterator[Panel]:
    """Yield the panels for which the run has numbers."""
    loss, validation = read_curve(records, "loss"), read_curve(records, "val_loss")

    def draw_losses(axis: Axes) -> None:
        draw_steps(axis, loss, "training loss", BLUE)
        if validation.y:
            draw_score(axis, validation, "validation loss", ORANGE)
        scale_score(axis, "nats per token")
        _draw_goals(axis, records, phases, ["loss", "val_loss"])

    if loss.y or validation.y:
        yield "loss, nats per token", 3.0, draw_losses

    # Every source has its colour in both panels; the mix of a phase is a dashed line that no border makes jump.
    colours = _choose_colours(_read_groups(records, "val_loss_by_source"), COLOURS)
    for key, label in GROUP_PANELS.items():
        sources, mixes = (_read_groups(records, f"{key}_by_{group}") for group in ("source", "mix"))

        def draw_sources(axis: Axes, key: str = key, sources: Curves = sources, mixes: Curves = mixes) -> None:
            _draw_groups(axis, sources, colours, "", marker=".", markersize=6)
            dashed: dict[str, Any] = {"linestyle": (0, (4, 2)), "marker": ""}
            _draw_groups(axis, mixes, _choose_colours(mixes, MIX_COLOURS), "in the mix of ", **dashed)
            scale_score(axis, unit_of(key))

        if len(sources) > 1:
            yield label, 2.0, draw_sources

    # Scores of eval sets and tasks by unit, then one number of each step.
    names = [name for name in list_scores(records) if name not in VALIDATION_SCORES]
    for unit, label in SCORE_PANELS.items():
        scores = _sort_curves({name: read_curve(records, name) for name in names if unit_of(name) == unit})

        def draw_scores(axis: Axes, unit: str = unit, scores: Curves = scores) -> None:
            _draw_groups(axis, scores, _choose_colours(scores, COLOURS), "")
            scale_score(axis, unit)
            _draw_goals(axis, records, phases, list(scores))

        if scores:
            yield label, 2.0, draw_scores
    for key, (label, _) in LINE_PANELS.items():
        curve = read_curve(records, key)
        if any(curve.y):
            yield label, 1.0, functools.partial(_draw_line, curve=curve, key=key)


def _read_groups(records: list[Record], key: str) -> Curves:
    """Return the curves of each source or mix, such as `val_loss_by_source`, the highest at the end first."""
    lines = [{**record[key], " step": record["step"]} for record in records if record.get(key)]
    names = dict.fromkeys(name for line in lines for name in line if name != " step")
    curves = {name: read_curve(lines, name, " step") for name in names}
    return _sort_curves({name: curve for name, curve in curves.items() if curve.y})


def _sort_curves(curves: Curves) -> Curves:
    return dict(sorted(curves.items(), key=lambda item: -item[1].y[-1]))


def _choose_colours(names: Iterable[str], colours: Sequence[str]) -> dict[str, str]:
    return dict(zip(sorted(names), itertools.cycle(colours), strict=False))


def _draw_groups(axis: Axes, curves: Curves, colours: dict[str, str], prefix: str, **style: Any) -> None:
    """Draw a curve for each name; the legend has its last value."""
    for name, curve in curves.items():
        stderr = "" if curve.stderr[-1] is None else f" ± {curve.stderr[-1]:.3f}"
        draw_score(axis, curve, f"{curve.y[-1]:.3f}{stderr}  {prefix}{name}", colours[name], **style)


def _draw_line(axis: Axes, curve: Curve, key: str) -> None:
    """Draw one of `LINE_PANELS`."""
    from matplotlib.ticker import EngFormatter

    label, colour = LINE_PANELS[key]
    if key == "tokens_per_s":
        draw_steps(axis, curve, "throughput", colour)
        axis.yaxis.set_major_formatter(EngFormatter(sep=" "))
    else:
        axis.plot(curve.x, curve.y, color=colour, label=f"cost so far: ${curve.y[-1]:,.2f}" if key == "usd" else label)
    axis.set_ylim(bottom=0)


def describe_run(records: list[Record], title: str) -> str:
    """Return the line above a plot: the run's name, its steps and tokens, and its losses at the end."""
    parts = [f"{title}: {plural(records[-1]['step'], 'step')}"]
    if tokens := last_record(records, "tokens").get("tokens"):
        parts.append(f"{plural(tokens, 'token')}")
    for key, name in (("loss", "training loss"), ("val_loss", "validation loss")):
        if (loss := last_record(records, key).get(key)) is not None:
            parts.append(f"{name} {loss:.3f}")
    return ", ".join(parts)


def _draw_goals(axis: Axes, records: list[Record], phases: list[PhaseConfig], scores: Sequence[str]) -> None:
    """Draw the value of one of some scores that each phase has to reach, over its steps so far, with whether it did."""
    rows = {row["phase"]: row for row in summarise_phases(phases, records)}
    began = 0
    for phase in phases:
        row = rows.get(phase.name)
        key, relation, bound = phase.goal.split() if phase.goal else ("", "", "")
        if row and key in scores:
            colour, outcome = {None: (GREY, "open"), True: (GREEN, "met"), False: (RED, "missed")}[row["goal_met"]]
            name = {"val_loss": "validation loss", "loss": "training loss"}.get(key, key)
            label = f"goal of {phase.name}:\n{name} {relation} {bound}, {outcome}"
            end = min(phase.until_step, records[-1]["step"])
            axis.plot([began, end], [float(bound)] * 2, color=colour, linestyle=":", label=label)
        began = phase.until_step


PURPLE = "#882255"
NAMED_STRETCHES = 12
"""Of a run of many epochs, which goes through the phases again and again, the names would only hide each other."""


def mark_phases(axes: Sequence[Axes], phases: list[PhaseConfig], steps: tuple[int, int]) -> None:
    """Mark where the run's phases end, and name those that have begun above the first panel.

    Args:
        axes: the panels, from the top.
        phases: the phases of the recipe.
        steps: the ends of the axis of steps.
    """
    first, last = steps
    began = first
    for phase in phases:
        end = min(phase.until_step, last)
        if began < end:
            _name(axes[0], phase.name, (began + end) / 2, colour="black", row=0)
        if first < phase.until_step <= last:
            for axis in axes:
                axis.axvline(phase.until_step, color="0.5", linestyle="--", linewidth=0.8)
        began = max(began, end)


def mark_mix(axes: Sequence[Axes], stretches: list[Stretch]) -> None:
    """Mark the borders of the mix's phases, shade every other phase, and name them above the first panel.

    Args:
        axes: the panels, from the top.
        stretches: the phases of the mix as the run went through them.
    """
    for number, stretch in enumerate(stretches):
        for axis in axes:
            if number:
                axis.axvline(stretch.begin, color=PURPLE, linestyle="-.", linewidth=1.0)
            if number % 2:
                axis.axvspan(stretch.begin, stretch.end, color=PURPLE, alpha=0.06, linewidth=0)
        if len(stretches) <= NAMED_STRETCHES:
            _name(axes[0], f"mix: {stretch.name}", (stretch.begin + stretch.end) / 2, colour=PURPLE, row=1)


def _name(axis: Axes, name: str, step: float, *, colour: str, row: int) -> None:
    """Write a name above a step, in a row above the panel."""
    place: dict[str, Any] = {"xycoords": axis.get_xaxis_transform(), "textcoords": "offset points"}
    place |= {"xytext": (0, 3 + 12 * row), "ha": "center", "va": "bottom", "fontsize": "small"}
    axis.annotate(name, (step, 1.0), color=colour, **place)
