"""Differences between arms: against a worked example of a textbook, by simulation, and at the edges."""

from __future__ import annotations

import numpy as np
import pytest

from tokenmill.experiments.answer import POWER, count_seeds, find_difference, find_factor


def test_interval_is_that_of_students_paired_test() -> None:
    """W. S. Gosset's example: extra hours of sleep of ten patients by two drugs (Biometrika 1908)."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = find_difference(first, second)
    assert found["difference"] == pytest.approx(1.58)
    assert (found["low"], found["high"]) == (pytest.approx(0.7001, abs=1e-4), pytest.approx(2.4599, abs=1e-4))


@pytest.mark.parametrize("effect", [0.1, 0.5, 1.0, 3.0, 20.0])
def test_seeds_needed_are_the_fewest_that_see_a_difference(effect: float) -> None:
    seeds = count_seeds(effect * 0.01, 0.01)
    assert seeds is not None

    def see(seeds: int) -> float:
        """Return how often the interval of so many seeds leaves out 0, by simulation."""
        pairs = np.random.default_rng(1).normal(effect, 1.0, (2000, seeds))
        half = find_factor(seeds) * pairs.std(axis=1, ddof=1) / seeds**0.5
        return float((abs(pairs.mean(axis=1)) > half).mean())

    assert see(seeds) > POWER - 0.04
    assert seeds == 2 or see(seeds - 1) < POWER + 0.04


def test_edges() -> None:
    assert [*find_difference([1.0], [1.5]).values()] == [0.5, None, None, None, None]
    equal = find_difference([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (equal["difference"], equal["difference_spread"]) == (0.0, 0.0)
    assert find_difference([1.0, 2.0], [1.5, 2.5])["low"] == 0.5
    assert round(find_factor(2), 1) == 12.7
    assert count_seeds(0.0, 0.01) is None
    assert count_seeds(1e-6, 1.0) is None
    assert count_seeds(0.5, 0.0) == 2
