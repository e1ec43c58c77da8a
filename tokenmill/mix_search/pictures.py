"""The pictures of a mix search: the response of each score to each share, and for three shares the objective."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenmill.mix_search.fit import find_interval, predict_objective
from tokenmill.mix_search.search import MixSearch
from tokenmill.mix_search.space import Shares
from trainer.results.curves import BLUE, ORANGE, plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 60
_HEIGHT = np.sqrt(3) / 2
"""Of a triangle with sides of 1."""


def draw_pictures(search: MixSearch, folder: Path) -> list[Path]:
    """Write the pictures of a search into a folder, and return their files."""
    with plot_style():
        drawn = {"response.png": _draw_responses(search)}
        if len(search.space.own) == 3:
            drawn["ternary.png"] = _draw_ternary(search)
        for name, figure in drawn.items():
            figure.savefig(folder / name, dpi=150)
    return [folder / name for name in drawn]


def _draw_responses(search: MixSearch) -> Figure:
    """Return a row of panels for each score, and a column for each share."""
    from matplotlib.figure import Figure

    # Panels share the axis of their score.
    scores, names = list(search.config.objective), search.space.names
    figure = Figure(figsize=(3.2 * len(names), 0.8 + 2.6 * len(scores)), layout="constrained")
    grid: Any = figure.subplots(len(scores), len(names), squeeze=False, sharey="row")
    for row, score in enumerate(scores):
        for column, name in enumerate(names):
            axis = grid[row][column]
            _draw_response(axis, search, score, column)
            if column == 0:
                axis.set_ylabel(f"{score}, bits per byte")
            if row == len(scores) - 1:
                axis.set_xlabel(f"share of {name}")
    figure.suptitle("one share moves, the others keep their proportions; points: arms, moved there by the fit", size=9)
    return figure


def _draw_response(axis: Axes, search: MixSearch, score: str, dimension: int) -> None:
    """Draw one score over one share: the fit, the band of the resamples, and the arms with what the fit misses."""
    space = search.space
    shares = np.linspace(space.low[dimension], space.high[dimension], _POINTS)
    line = move_share(search.winner, dimension, shares)
    fit = search.fit.scores[score]
    low, high = find_interval([one[score].predict(line) for one in search.fit.resampled])
    axis.fill_between(shares, low, high, color=BLUE, alpha=0.2, linewidth=0)
    axis.plot(shares, fit.predict(line), color=BLUE)
    # The arms differ in other shares, too: what the fit says of these is taken away.
    at = _mixes(search)[:, dimension]
    axis.plot(
        at, fit.predict(move_share(search.winner, dimension, at)) + search.fit.residuals[score], "o", color=BLUE, ms=3
    )
    axis.axvline(float(search.winner[dimension]), color=ORANGE, linewidth=1)
    axis.axvline(float(space.own[dimension]), color="0.6", linewidth=1, linestyle="--")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def move_share(mix: Shares, dimension: int, shares: Shares) -> Shares:
    """Return mixes, `(values, dimensions)`: one share has these values, and the others keep their proportions."""
    others = np.delete(mix, dimension)
    parts = others / others.sum() if others.sum() > 0 else np.full(len(others), 1 / len(others))
    return np.insert(np.outer(1 - shares, parts), dimension, shares, axis=1)


def _draw_ternary(search: MixSearch) -> Figure:
    """Return the objective over three shares, as a triangle whose corners are one source alone."""
    from matplotlib.figure import Figure

    space = search.space
    inside = search.candidates
    values = predict_objective(search.fit.scores, search.config.objective, inside)
    figure = Figure(figsize=(6, 5.4), layout="constrained")
    axis = figure.subplots()
    axis.plot(*_place(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=float)), color="0.3", linewidth=1)
    colours = axis.tricontourf(*_place(inside), values, levels=16, cmap="viridis_r")
    figure.colorbar(colours, label="objective by the fit, bits per byte", shrink=0.8)
    axis.plot(*_place(search.fit.resampled_best), ".", color=ORANGE, alpha=0.3, ms=4, label="best of a resample")
    axis.plot(*_place(_mixes(search)), "o", color="white", mec="black", ms=5, label="arm")
    axis.plot(*_place(space.own[None]), "s", color="0.4", mec="black", ms=8, label="recipe")
    axis.plot(*_place(search.winner[None]), "*", color=ORANGE, mec="black", ms=15, label="winner")
    for corner, name in zip(np.eye(3), space.names, strict=True):
        x, y = _place(corner[None])
        axis.annotate(
            f"{name} 100%", (x[0], y[0]), (0, 8 if y[0] > 0 else -14), textcoords="offset points", ha="center"
        )
    axis.legend(fontsize=8, loc="upper right")
    axis.set_aspect("equal")
    axis.set_axis_off()
    return figure


def _mixes(search: MixSearch) -> Shares:
    """Return the mixes of the arms, `(arms, dimensions)`."""
    return np.array(list(search.mixes.values()))


def _place(mixes: Shares) -> tuple[Shares, Shares]:
    """Return where mixes of three shares lie in the triangle: left, right and upper corner."""
    return mixes[:, 1] + mixes[:, 2] / 2, mixes[:, 2] * _HEIGHT
