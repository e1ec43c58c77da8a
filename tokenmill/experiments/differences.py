"""Differences between arms: paired by seed, with intervals, and how many seeds it takes to see one."""

# scipy ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.95
POWER = 0.8
"""A difference counts as one that is seen if it is found in this part of all such ablations."""
MOST_SEEDS = 10_000
"""With more seeds, an answer is of no use."""


class Difference(NamedTuple):
    """The difference of one score between an arm and the first, paired by seed. Values that are not known are None."""

    mean: float
    """The mean over the seeds of the arm's value less that of the first arm."""
    low: float | None
    high: float | None
    """The ends of the 95 % interval of the mean; None with one seed."""
    p: float | None
    """How often equal arms would differ at least as much."""
    spread: float | None
    """The standard deviation of the differences over the seeds."""

    @property
    def is_seen(self) -> bool | None:
        """Whether the interval of a difference leaves out 0; None if there is no interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


def find_difference(first: Sequence[float], other: Sequence[float]) -> Difference:
    """Return the difference of two arms from the values of one score, paired by seed.

    The interval is that of Student's t for paired samples.
    """
    from scipy import stats

    differences = [b - a for a, b in zip(first, other, strict=True)]
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return Difference(mean, None, None, None, None)
    spread = statistics.stdev(differences)
    if spread == 0:  # equal to the last bit with every seed
        return Difference(mean, mean, mean, 1.0 if mean == 0 else 0.0, 0.0)
    freedom, error = len(differences) - 1, spread / math.sqrt(len(differences))
    low, high = stats.t.interval(CONFIDENCE, freedom, mean, error)
    p = 2 * stats.t.sf(abs(mean) / error, freedom)
    return Difference(mean, float(low), float(high), float(p), spread)


def count_seeds(difference: float, spread: float) -> int | None:
    """Return how many seeds show a difference with the power `POWER`; None if it is more than `MOST_SEEDS`."""
    if spread == 0:
        return 2
    effect = abs(difference) / spread
    if _find_power(effect, MOST_SEEDS) < POWER:
        return None
    return 2 + bisect.bisect_left(range(2, MOST_SEEDS), POWER, key=lambda seeds: _find_power(effect, seeds))


def _find_power(effect: float, seeds: int) -> float:
    """Return how often Student's t for `seeds` pairs finds a difference of `effect` spreads, with its sign."""
    from scipy import stats

    freedom = seeds - 1
    limit = stats.t.ppf((1 + CONFIDENCE) / 2, freedom)
    return float(stats.nct.sf(limit, freedom, effect * math.sqrt(seeds)))
