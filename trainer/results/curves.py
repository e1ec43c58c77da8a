"""Curves of a run's metrics: read, smoothed, and the units of their numbers."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from shards.format.arrays import Float64s
from trainer.evaluation.scores import VALIDATION_SCORES, read_score
from trainer.metrics import Record

LOSS_UNITS = ("nats per token", "bits per byte")
"""Units of scores of which less is better."""


Curve = list[tuple[float, float, float | None]]
"""A number of a run over another, such as steps or dollars: that one, the number, its standard error if it is known."""


def list_scores(records: Sequence[Record]) -> list[str]:
    """Return the names of the scores in a run's metrics: of the validation split, then of its eval sets and tasks."""
    own = [key for key in VALIDATION_SCORES if any(record.get(key) is not None for record in records)]
    return [*own, *dict.fromkeys(name for record in records for name in record.get("scores", {}))]


def read_curve(records: Iterable[Record], key: str, against: str = "step") -> Curve:
    """Return a number or a score of a run's metrics over another number of the lines, such as `tokens`."""
    curve: Curve = []
    for record in records:
        score = read_score(record, key)
        if score["value"] is not None and against in record:
            curve.append((record[against], score["value"], score["stderr"]))
    return curve


def unit_of(score: str) -> str:
    """Return the unit of a curve's score, by its name: nats per token, bits per byte, or accuracy."""
    if score in ("loss", "val_loss"):
        return "nats per token"
    return "bits per byte" if score.endswith(("_bpb", "_bits_per_byte")) else "accuracy"


def smooth(values: Sequence[float] | Float64s, width: int) -> Float64s:
    """Smooth a curve's values: return the mean of `width` values around each one, float64 `(len(values),)`.

    Near the beginning, where a loss falls steeply, as few values follow as come before; near the end fewer follow.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a loss may be anything
        sums = np.append(0.0, np.cumsum(values))
    index = np.arange(len(values))
    before = np.minimum(index, width // 2)
    after = np.minimum(before, len(values) - 1 - index)
    starts, stops = index - before, index + after + 1
    return (sums[stops] - sums[starts]) / (stops - starts)
