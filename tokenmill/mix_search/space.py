"""The mixes that a search may try: shares of the sources that add up to 1, each within its bounds.

Those that it tries are points that fill the space, and then points near the best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.recipe.schema import Recipe
from shards.errors import InputError
from shards.format.arrays import Float64s
from shards.terminal.hints import nearest

Shares = Float64s
"""One mix, float64 `(dimensions,)`, or several, `(mixes, dimensions)`."""

DECIMALS = 4
"""Shares are rounded to 1/10,000: no small model tells nearer mixes apart."""
LEAST_WEIGHT = 1e-6
"""The weight, in percent, of a source whose share is 0: weights of a recipe are positive. It is 1 token of 100 M."""


@dataclass(frozen=True)
class MixSpace:
    """The mixes within the bounds. A dimension is a source with bounds; the other sources are one dimension."""

    groups: tuple[dict[str, float], ...]
    """For each dimension its sources, with their parts of its share."""
    own: Shares
    """The recipe's own mix, `(dimensions,)`; it may be out of the bounds."""
    low: Shares
    high: Shares
    """The bounds, `(dimensions,)`, each as narrow as the other bounds make it."""

    @property
    def names(self) -> list[str]:
        """The names of the dimensions."""
        return [" + ".join(group) for group in self.groups]

    @property
    def parameters(self) -> int:
        """How many numbers the fit of a score over the mixes has: a pure score for each dimension, and the exponent."""
        return len(self.own) + 1

    def weights(self, mix: Shares) -> dict[str, float]:
        """Return the weight of each source in a mix in percent; that of a share of 0 is `LEAST_WEIGHT`."""
        return {name: max(round(100 * share, 6), LEAST_WEIGHT) for name, share in self.divide(mix).items()}

    def divide(self, mix: Shares) -> dict[str, float]:
        """Return the share of each source in a mix, or each bound's part of it."""
        return {
            name: float(share) * part
            for share, group in zip(mix, self.groups, strict=True)
            for name, part in group.items()
        }

    def round(self, mix: Shares) -> Shares:
        """Return a mix with rounded shares that add up to 1, within the bounds."""
        rounded = np.clip(np.round(mix, DECIMALS), self.low, self.high)
        # What rounding took or gave goes to the dimension with the most room.
        rest = 1.0 - rounded.sum()
        room = self.high - rounded if rest > 0 else rounded - self.low
        rounded[int(np.argmax(room))] += rest
        return np.round(rounded, 12)

    def holds(self, mix: Shares, tolerance: float = 1e-9) -> bool:
        """Return whether a mix is within the bounds."""
        inside = (mix >= self.low - tolerance) & (mix <= self.high + tolerance)
        return bool(inside.all()) and abs(float(mix.sum()) - 1) <= tolerance


def find_space(file: Path, recipe: Recipe, bounds: Mapping[str, Sequence[float]]) -> MixSpace:
    """Return the mixes that the bounds of a search leave.

    Raises:
        InputError: an unknown source, a recipe with phases or without weights, or bounds that no mix or one mix alone
            keeps.
    """
    if not recipe.has_weights:
        raise InputError(f"{file}: data: the recipe has no weights, and a mix search begins with them. Give all one.")
    own = {source.name: source.weight for source in recipe.sources if source.weight}
    problems = [
        f"{file}: bounds.{name}: no such source.{nearest(name, list(own))} The recipe has {', '.join(own)}."
        for name in bounds
        if name not in own
    ]
    if recipe.mix.phases:
        problems.append(f"{file}: data: the recipe has mix.phases, and a mix search finds one mix. Take them out.")
    if problems:
        raise InputError(problems)
    # One dimension for each source with bounds, and one for all others.
    others = [name for name in own if name not in bounds]
    members = [[name] for name in own if name in bounds] + ([others] if others else [])
    sums = [sum(own[name] for name in group) for group in members]
    low, high = np.array([bounds.get(group[0], (0.0, 1.0)) for group in members], np.float64).T
    if low.sum() > 1 + 1e-9:
        raise InputError(f"{file}: bounds: the least shares add up to {low.sum():g}, more than 1. Lower them.")
    if high.sum() < 1 - 1e-9:
        raise InputError(f"{file}: bounds: the greatest shares add up to {high.sum():g}, less than 1. Raise them.")
    # As narrow as the other bounds make them.
    low, high = np.maximum(low, 1 - (high.sum() - high)), np.minimum(high, 1 - (low.sum() - low))
    if (high - low).max() < 10**-DECIMALS:
        raise InputError(f"{file}: bounds: they allow only one mix, so there is nothing to search. Widen them.")
    return MixSpace(
        groups=tuple({name: own[name] / total for name in group} for group, total in zip(members, sums, strict=True)),
        own=np.array(sums) / sum(sums),
        low=low,
        high=high,
    )


CANDIDATES = 4096
"""Points to choose from: a power of two, as Sobol' sequences need."""
NEARER = 0.4
"""How much nearer to the best the points of a round are than those of the round before."""


def list_candidates(space: MixSpace) -> Shares:
    """Return `CANDIDATES` mixes within the bounds, `(CANDIDATES, dimensions)`: a scrambled Sobol' sequence.

    The shares of a mix are chosen one after another, each between what the bounds leave; which one is first changes
    from mix to mix.
    """
    from scipy.stats import qmc

    size = len(space.own)
    units = qmc.Sobol(size, rng=np.random.default_rng(0)).random(CANDIDATES)
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
