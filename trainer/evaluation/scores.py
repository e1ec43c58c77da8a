"""Scores of a model with their standard errors: as metrics.jsonl has them, and as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.errors import RunError

if TYPE_CHECKING:
    import numpy.typing as npt


Score = dict[str, Any]
"""A number that says how good a model is on an eval set or an eval task: its `value`, and its standard error `stderr`,
which is None if it is not known, as of a single document."""


def show_score(value: float | None, stderr: float | None, sign: str = "") -> str | None:
    """Return a score, or with the sign `+` a difference of scores, as people read it; None without a value."""
    if value is None:
        return None
    return f"{value:{sign}.4f}" + ("" if stderr is None else f" ± {stderr:.4f}")


def estimate_ratio(parts: npt.NDArray[np.float64], wholes: npt.NDArray[np.float64]) -> Score:
    """Return as a score the sum of some parts over that of their wholes, with its standard error over the items.

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
        return {"value": ratio, "stderr": None}
    squares = float(((parts - ratio * wholes) ** 2).sum())
    return {"value": ratio, "stderr": math.sqrt(items / (items - 1) * squares) / whole}


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
