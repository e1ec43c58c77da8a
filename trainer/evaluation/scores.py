"""Scores of a model, with standard errors: their form in metrics.jsonl, and on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shards.errors import RunError

if TYPE_CHECKING:
    import numpy.typing as npt


class Score(NamedTuple):
    """A number that says how good a model is on an eval set or an eval task."""

    value: float
    stderr: float | None
    """The standard error; None if it is not known, as of a single document."""

    def __str__(self) -> str:
        return f"{self.value:.4f}" if self.stderr is None else f"{self.value:.4f} ± {self.stderr:.4f}"


class Scores(NamedTuple):
    """The scores of some eval sets and eval tasks."""

    values: dict[str, Score]
    """By the name of the score, such as `web_bpb`."""
    notes: dict[str, dict[str, Any]]
    """By the name of the eval set or task: what was counted, such as documents that were left out."""

    def to_record(self) -> dict[str, Any]:
        """Return the fields of a validation line in metrics.jsonl; none if there are no scores."""
        if not self.values:
            return {}
        return {"scores": {name: score._asdict() for name, score in self.values.items()}, "score_notes": self.notes}

    def describe(self) -> str:
        """Return the scores in one line."""
        return ", ".join(f"{name} {score}" for name, score in self.values.items())


def estimate_ratio(parts: npt.NDArray[np.float64], wholes: npt.NDArray[np.float64]) -> Score:
    """Return the sum of some parts over the sum of their wholes, with its standard error over the items.

    The items, such as documents, are taken for a random sample, each with a part (bits) and a whole (bytes). A long
    document has more weight than a short one, and its tokens are not independent: only documents are. The standard
    error is that of the ratio estimator by linearisation, `sqrt(n / (n - 1) * sum((part - ratio * whole) ** 2)) /
    sum(wholes)`. Source: W. G. Cochran, Sampling Techniques, 3rd edition, 1977, section 6.4, without the correction for
    a finite population.

    Args:
        parts: float64 `(items,)`.
        wholes: float64 `(items,)`, of the same items; their sum is above 0.
    """
    items, whole = len(parts), float(wholes.sum())
    ratio = float(parts.sum()) / whole
    if items < 2:
        return Score(ratio, None)
    squares = float(((parts - ratio * wholes) ** 2).sum())
    return Score(ratio, math.sqrt(items / (items - 1) * squares) / whole)


def check_finite(name: str, values: Mapping[str, float]) -> None:
    """Check the numbers that a score is made of.

    Args:
        name: the name of the score.
        values: the number of each item, by the words that name the item: its file and row, or its question.

    Raises:
        RunError: a number is not finite.
    """
    for item, value in values.items():
        if not math.isfinite(value):
            message = (
                f"{name}: is {value} for {item}; expected a finite number. The weights give no usable logits there"
            )
            raise RunError(f"{message}: go back to an earlier checkpoint, or lower optimizer.lr.")
