"""Curves of a run's metrics: read, smoothed, and drawn with their errors, for the plots of one run and of several."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false
from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from shards.errors import plural
from shards.terminal.program import Row
from trainer.metrics import Record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#D55E00", "#009E73", "#CC3311", "0.45"
COLOURS = (ORANGE, BLUE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""Told apart by colour-blind readers too. Source: Okabe and Ito."""
SMOOTHED_PARTS = 100
"""Curves are smoothed by the mean of this part of all steps."""
SMOOTHED_FROM_STEPS = 40
"""With fewer steps, nothing is smoothed."""
VALIDATION_SCORES = ("val_loss", "val_bits_per_byte")
"""Scores of the validation split, which are keys of a validation line by themselves."""
LOSS_UNITS = ("nats per token", "bits per byte")
"""Units of scores of which less is better."""
TOKENIZER_UNIT = "nats per token"
"""The unit of scores that compare only models with the same tokenizer."""
MARKED: Row = {"marker": "o", "markersize": 3.5, "clip_on": False}
"""The style of a curve with few points."""


class Curve(NamedTuple):
    """A number of a run over steps, tokens, seconds or dollars, with its standard errors where they are known."""

    x: list[float]
    y: list[float]
    stderr: list[float | None]


def list_scores(records: Iterable[Record]) -> list[str]:
    """Return the names of the scores in a run's metrics: of the validation split, then of its eval sets and tasks."""
    found: dict[str, None] = {}
    others: dict[str, None] = {}
    for record in records:
        found |= dict.fromkeys(key for key in VALIDATION_SCORES if record.get(key) is not None)
        others |= dict.fromkeys(record.get("scores") or {})
    return [*found, *others]


def read_curve(records: Iterable[Record], key: str, against: str = "step") -> Curve:
    """Return a number or a score of a run's metrics over another number of the lines, such as `tokens`."""
    curve = Curve([], [], [])
    for record in records:
        # A score has a standard error; every other number stands in the line by itself.
        score: Row = (record.get("scores") or {}).get(key) or {"value": record.get(key), "stderr": None}
        if score["value"] is not None and against in record:
            curve.x.append(record[against])
            curve.y.append(score["value"])
            curve.stderr.append(score["stderr"])
    return curve


def unit_of(score: str) -> str:
    """Return the unit of a score, by its name: nats per token, bits per byte, or accuracy."""
    if score in ("loss", "val_loss"):
        return "nats per token"
    return "bits per byte" if score.endswith(("_bpb", "_bits_per_byte")) else "accuracy"


@contextlib.contextmanager
def plot_style() -> Generator[None]:
    """Set the look of every plot while its figure is made. Names come from recipes: `$` must not start a formula."""
    import matplotlib as mpl

    with mpl.rc_context({"text.parse_math": False, "axes.spines.top": False, "axes.spines.right": False}):
        yield


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


def draw_steps(axis: Axes, curve: Curve, name: str, colour: str, *, raw: bool = True, **style: Any) -> None:
    """Draw a number of each step, smoothed; a short curve as it is.

    Args:
        axis: the panel.
        curve: the number.
        name: its name in the legend, which also says how it is smoothed if the raw curve is drawn.
        colour: its colour.
        raw: draw the raw curve pale behind the smooth one.
        style: other properties of the line.
    """
    x, values = curve.x, curve.y
    if len(values) < SMOOTHED_FROM_STEPS:
        axis.plot(x, values, color=colour, label=name, **style)
        return
    width = max(10, len(values) // SMOOTHED_PARTS)
    label = name
    if raw:
        axis.plot(x, values, color=colour, label=f"{name}, each step", alpha=0.25, linewidth=0.8, rasterized=True)
        label = f"{name}, mean of {plural(width, 'step')}"
    axis.plot(x, smooth(values, width), color=colour, label=label, **style)


def draw_score(axis: Axes, curve: Curve, label: str, colour: str, **style: Any) -> None:
    """Draw a score: its points, a band of one standard error around them, and a bar of it at the last point."""
    import numpy as np

    axis.plot(curve.x, curve.y, color=colour, label=label, **MARKED | style)
    y, stderr = np.asarray(curve.y), np.asarray(curve.stderr, np.float64)  # an unknown error is NaN, and not drawn
    if not np.isnan(stderr).all():
        axis.fill_between(curve.x, y - stderr, y + stderr, color=colour, alpha=0.15, linewidth=0)
        axis.errorbar(curve.x[-1:], y[-1:], stderr[-1:], color=colour, capsize=3, linewidth=1.2)


def scale_score(axis: Axes, unit: str) -> None:
    """Scale the axis of a score by its unit: accuracy evenly, losses by their logarithms, with plain numbers.

    On a logarithmic axis a fall from 3.0 to 2.9 shows after one from 10.
    """
    from matplotlib.ticker import MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter

    if unit == "accuracy":
        axis.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))
        return
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
