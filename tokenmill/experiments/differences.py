"""Differences between arms: paired by seed, with intervals, and how many seeds it takes to see one."""

# scipy ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from shards.terminal.display import JsonObject

CONFIDENCE = 0.95
POWER = 0.8
"""A difference counts as one that is seen if it is found in this part of all such ablations."""
MOST_SEEDS = 10_000
"""With more seeds, an answer is of no use."""


def find_difference(first: Sequence[float], other: Sequence[float]) -> JsonObject:
    """Return the difference of two arms from the values of one score, paired by seed. What is not known is None.

    Returns:
        `difference`: the mean over the seeds of the arm's value less that of the first arm. `low` and `high`: the ends
        of its 95% interval, that of Student's t for paired samples. `difference_spread`: the standard deviation of
        the differences over the seeds. `seeds_needed`: about how many seeds would show a difference of this size with
        this spread. One seed shows nothing but the first.
    """
    differences = [b - a for a, b in zip(first, other, strict=True)]
    mean, seeds = statistics.fmean(differences), len(differences)
    row: JsonObject = {"difference": mean, **dict.fromkeys(("low", "high", "difference_spread", "seeds_needed"))}
    if seeds < 2:
        return row
    spread = statistics.stdev(differences)
    half = find_factor(seeds) * spread / math.sqrt(seeds)
    row |= {"low": mean - half, "high": mean + half, "difference_spread": spread}
    return row | {"seeds_needed": count_seeds(mean, spread)}


def find_factor(seeds: int) -> float:
    """Return how many of its standard errors the interval of a mean reaches to each side: the factor of Student's t."""
    from scipy import stats

    return float(stats.t.ppf((1 + CONFIDENCE) / 2, seeds - 1))


def count_seeds(difference: float, spread: float) -> int | None:
    """Return about how many seeds show a difference with the power `POWER`; None if it is more than `MOST_SEEDS`."""
    from scipy import stats

    seeds = np.arange(2, MOST_SEEDS)
    limits = stats.t.ppf((1 + CONFIDENCE) / 2, seeds - 1) + stats.t.ppf(POWER, seeds - 1)
    enough = seeds[abs(difference) * np.sqrt(seeds) > limits * spread]
    return int(enough[0]) if len(enough) else None
