"""The plot of one run.

Training loss, smoothed with the raw one behind it, and validation loss with the phases and their goals; validation loss
and bits per byte by source, and in the mix of each phase of the set; scores of eval sets and tasks; learning rate,
throughput and dollars. The set's phases are marked in every panel.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false
from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shards.errors import InputError, plural
from trainer.metrics import Record, last_record
from trainer.phases.ledger import summarise_phases
from trainer.phases.mix_phases import list_stretches
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
from trainer.results.marks import mark_mix, mark_phases

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIX_COLOURS = ("#000000", "#882255", "#DDAA33", "#555555", "#999933", "#44AA99")
GROUP_PANELS = {
    "val_loss": "validation loss\nby source, nats per token",
    "val_bits_per_byte": "validation bits per byte\nby source",
}
"""Panels of a validation line's numbers by source and by phase of the set's mix, and the words at their axes."""
SCORE_PANELS = {"bits per byte": "eval sets and tasks\nbits per byte", "accuracy": "eval tasks\naccuracy"}
"""Panels of the scores of eval sets and tasks, by unit, and the words at their axes."""
LINE_PANELS = {
    "lr": ("learning rate", GREY),
    "tokens_per_s": ("tokens per second", BLUE),
    "usd": ("US dollars", GREEN),
}
"""Panels of one number of each step, from 0, with the words at their axes and their colours."""


def draw_run(records: list[Record], phases: list[PhaseConfig], *, title: str) -> Figure:
    """Return a figure of one run's metrics over steps: a panel for each kind of number that the lines have.

    Raises:
        InputError: there is nothing to draw.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    # Choose the panels: one for each kind of number that the run has.
    curves = {key: read_curve(records, key) for key in ("loss", "val_loss", *LINE_PANELS)}
    sources = {key: _read_groups(records, f"{key}_by_source") for key in GROUP_PANELS}
    scores = _read_scores(records)
    stretches = list_stretches(records)
    heights = {
        "loss": 3.0 if curves["loss"].y or curves["val_loss"].y else 0,
        **{f"{key}_by_source": 2.0 if len(sources[key]) > 1 else 0 for key in GROUP_PANELS},
        **{unit: 2.0 if scores[unit] else 0 for unit in SCORE_PANELS},
        **{key: 1.0 if any(curves[key].y) else 0 for key in LINE_PANELS},
    }
    panels = [panel for panel, height in heights.items() if height]
    if not panels:
        raise InputError("metrics.jsonl: no step is logged yet; nothing to draw")

    with plot_style():
        ratios = [heights[panel] for panel in panels]
        figure = Figure(figsize=(11, 1.2 + 1.35 * sum(ratios)), layout="constrained")
        axes = figure.subplot_mosaic([[panel] for panel in panels], sharex=True, height_ratios=ratios)
        if "loss" in axes:
            borders = [stretch.begin for stretch in stretches[1:]]
            draw_steps(axes["loss"], curves["loss"], "training loss", BLUE, borders=borders)
            if curves["val_loss"].y:
                draw_score(axes["loss"], curves["val_loss"], "validation loss", ORANGE)
            scale_score(axes["loss"], "nats per token")
            axes["loss"].set_ylabel("loss, nats per token")

        # Every source has its colour in both panels; the mix of a phase is a dashed line that no border makes jump.
        colours = _choose_colours(sources["val_loss"], COLOURS)
        for key in GROUP_PANELS:
            if (axis := axes.get(f"{key}_by_source")) is not None:
                _draw_groups(axis, sources[key], colours, "", marker=".", markersize=6)
                mixes = _read_groups(records, f"{key}_by_mix")
                dashed: dict[str, Any] = {"linestyle": (0, (4, 2)), "marker": ""}
                _draw_groups(axis, mixes, _choose_colours(mixes, MIX_COLOURS), "in the mix of ", **dashed)
                scale_score(axis, unit_of(key))
                axis.set_ylabel(GROUP_PANELS[key])
        for unit in SCORE_PANELS.keys() & axes.keys():
            _draw_groups(axes[unit], scores[unit], _choose_colours(scores[unit], COLOURS), "")
            scale_score(axes[unit], unit)
            axes[unit].set_ylabel(SCORE_PANELS[unit])
        for key in LINE_PANELS.keys() & axes.keys():
            _draw_line(axes[key], curves[key], key)

        # Goals and phases of the run, phases of the set, legends, and the axis of steps.
        drawn = {"loss": ["loss", "val_loss"], **{unit: list(scores[unit]) for unit in SCORE_PANELS}}
        for panel in drawn.keys() & axes.keys():
            _draw_goals(axes[panel], records, phases, drawn[panel])
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


def _read_groups(records: list[Record], key: str) -> dict[str, Curve]:
    """Return the curves of each source or mix, such as `val_loss_by_source`, the highest at the end first."""
    lines = [{**record[key], " step": record["step"]} for record in records if record.get(key)]
    names = dict.fromkeys(name for line in lines for name in line if name != " step")
    curves = {name: read_curve(lines, name, " step") for name in names}
    return _sort_curves({name: curve for name, curve in curves.items() if curve.y})


def _read_scores(records: list[Record]) -> dict[str, dict[str, Curve]]:
    """Return the curves of each eval set's and task's scores, by unit."""
    names = [name for name in list_scores(records) if name not in VALIDATION_SCORES]
    return {
        unit: _sort_curves({name: read_curve(records, name) for name in names if unit_of(name) == unit})
        for unit in SCORE_PANELS
    }


def _sort_curves(curves: dict[str, Curve]) -> dict[str, Curve]:
    return dict(sorted(curves.items(), key=lambda item: -item[1].y[-1]))


def _choose_colours(names: Iterable[str], colours: Sequence[str]) -> dict[str, str]:
    return dict(zip(sorted(names), itertools.cycle(colours), strict=False))


def _draw_groups(axis: Axes, curves: dict[str, Curve], colours: dict[str, str], prefix: str, **style: Any) -> None:
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
    axis.set_ylabel(label)
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
