"""Marks of a plot: where the phases of the run end, and where those of the set's mix begin."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trainer.phases.mix_phases import Stretch
    from trainer.recipe import PhaseConfig

PURPLE = "#882255"
NAMED_STRETCHES = 12
"""Of a run of many epochs, which goes through the phases again and again, the names would only hide each other."""

Steps = tuple[int, int]
"""The ends of the axis of steps."""


def mark_phases(axes: Sequence[Axes], phases: list[PhaseConfig], steps: Steps) -> int:
    """Mark where the run's phases end, and name those that have begun above the first panel; return the rows of names.

    Args:
        axes: the panels, from the top.
        phases: the phases of the recipe.
        steps: the ends of the axis.
    """
    first, last = steps
    # A line where a phase ends, a name over the part that is drawn.
    spans: list[tuple[str, float, float]] = []
    began = first
    for phase in phases:
        end = min(phase.until_step, last)
        if began < end:
            spans.append((phase.name, began, end))
        if first < phase.until_step <= last:
            for axis in axes:
                axis.axvline(phase.until_step, color="0.5", linestyle="--", linewidth=0.8)
        began = max(began, end)
    return _name(axes[0], spans, steps, colour="black", row=0)


def mark_mix(axes: Sequence[Axes], stretches: list[Stretch], steps: Steps, *, row: int) -> None:
    """Mark the borders of the mix's phases, shade every other phase, and name them above the first panel.

    Args:
        axes: the panels, from the top.
        stretches: the phases of the mix as the run went through them.
        steps: the ends of the axis.
        row: the first row that is free for names.
    """
    for number, stretch in enumerate(stretches):
        for axis in axes:
            if number:
                axis.axvline(stretch.begin, color=PURPLE, linestyle="-.", linewidth=1.0)
            if number % 2:
                axis.axvspan(stretch.begin, stretch.end, color=PURPLE, alpha=0.06, linewidth=0)
    if len(stretches) <= NAMED_STRETCHES:
        spans = [(f"mix: {stretch.name}", stretch.begin, stretch.end) for stretch in stretches]
        _name(axes[0], spans, steps, colour=PURPLE, row=row)


def _name(axis: Axes, spans: list[tuple[str, float, float]], steps: Steps, *, colour: str, row: int) -> int:
    """Write names above spans of steps, from a row on, in rows that do not overlap; return how many rows are taken."""
    first, last = steps
    width_of_steps = max(1, last - first)
    ends: list[float] = []
    """Where each row of names is free, as a part of the width."""
    for name, begin, end in spans:
        # About as wide as the name is drawn.
        width = 0.0115 * (len(name) + 1)
        middle = (begin + end) / 2
        left = min(max((middle - first) / width_of_steps - width / 2, 0.0), 1.0 - width)
        taken = next((index for index, free in enumerate(ends) if free <= left), len(ends))
        if taken == len(ends):
            ends.append(0.0)
        ends[taken] = left + width
        axis.annotate(
            name,
            (left + width / 2, 1.0),
            xycoords="axes fraction",
            xytext=(0, 3 + 12 * (row + taken)),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize="small",
            color=colour,
        )
    return row + len(ends)
