"""The mixes that a search tries: points that fill the space within the bounds, and then points near the best."""

# scipy ships no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
from __future__ import annotations

import numpy as np

from tokenmill.mix_search.space import MixSpace, Shares

CANDIDATES = 4096
"""Points to choose from: a power of two, as Sobol' sequences need."""
NEARER = 0.4
"""How much nearer to the best the points of a round are than those of the round before."""


def list_candidates(space: MixSpace, seed: int) -> Shares:
    """Return `CANDIDATES` mixes within the bounds, `(CANDIDATES, dimensions)`: a scrambled Sobol' sequence.

    The shares of a mix are chosen one after another, each between what the bounds leave; which one is first changes
    from mix to mix.
    """
    from scipy.stats import qmc

    size = len(space.own)
    units = qmc.Sobol(size, rng=np.random.default_rng(seed)).random(CANDIDATES)
    mixes = np.zeros_like(units)
    for first in range(size):
        rows = slice(first, None, size)
        order = [(first + step) % size for step in range(size)]
        left = np.ones(len(units[rows]))
        for place, dimension in enumerate(order):
            later = order[place + 1 :]
            low = np.maximum(space.low[dimension], left - space.high[later].sum())
            high = np.minimum(space.high[dimension], left - space.low[later].sum())
            share = low + units[rows, dimension] * np.maximum(high - low, 0)
            mixes[rows, dimension] = share
            left = left - share
    return mixes


def spread_out(space: MixSpace, candidates: Shares, count: int, taken: Shares) -> list[Shares]:
    """Return mixes of the candidates, each as far as possible from those before it and from those that are taken.

    Args:
        space: the mixes within the bounds; distances are in widths of its dimensions.
        candidates: mixes to choose from, `(candidates, dimensions)`.
        count: how many to choose at the most; fewer if no others are left.
        taken: mixes that are there, `(mixes, dimensions)`, at least one.
    """
    width = np.maximum(space.high - space.low, 1e-12)
    rounded = np.array([space.round(one) for one in candidates])
    distances = np.min([np.linalg.norm((rounded - one) / width, axis=1) for one in taken], axis=0)
    chosen: list[Shares] = []
    while len(chosen) < count and distances.max() > 1e-9:
        chosen.append(rounded[int(np.argmax(distances))])
        distances = np.minimum(distances, np.linalg.norm((rounded - chosen[-1]) / width, axis=1))
    return chosen


def draw_near(candidates: Shares, best: Shares, round_number: int) -> Shares:
    """Return candidates drawn towards the best mix, the nearer the later the round (2, 3, ...)."""
    return best + NEARER ** (round_number - 1) * (candidates - best)
