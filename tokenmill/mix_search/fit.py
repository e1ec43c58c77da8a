"""How scores depend on the mix: a log-linear fit for each score, the best mix by the fits, and bootstrap intervals.

    score = floor + exp(slopes . shares)

RegMix (arXiv:2407.01492), data mixing laws (arXiv:2403.16952) and Olmix fit this form. One score only rises or falls
along a line of mixes, so by one score the best mix is at a bound; a mean of several scores may have its best between.
"""

# scipy ships no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.experiments.differences import CONFIDENCE
from tokenmill.mix_search.space import MixSpace, Shares

Values = npt.NDArray[np.float64]
_FLOORS = (0.0, 0.5, 0.8, 0.95)
"""Where searches of the floor begin, in parts of the lowest score."""


class ScoreFit(NamedTuple):
    """The fit of one score."""

    floor: float
    """What no mix would go below, in the unit of the score."""
    slopes: Shares
    """By dimension, how much a whole share adds to the logarithm of what is above the floor."""

    def predict(self, mixes: Shares) -> Values:
        """Return the score of each mix, `(mixes,)`."""
        return self.floor + np.exp(mixes @ self.slopes)


class SearchFit(NamedTuple):
    """The fits of the scores of an objective, the best mix by them, and what the bootstrap says of both."""

    scores: dict[str, ScoreFit]
    best: Shares
    resampled: list[dict[str, ScoreFit]]
    """The fits of each resample."""
    resampled_best: Shares
    """The best mix of each resample, `(resamples, dimensions)`."""
    residuals: dict[str, Values]
    """For each score, the mean of each arm less the fit."""


def count_parameters(dimensions: int) -> int:
    """Return how many numbers the fit of a score has: a slope for each dimension, and the floor."""
    return dimensions + 1


def fit_score(mixes: Shares, values: Values, weights: Values | None = None, start: ScoreFit | None = None) -> ScoreFit:
    """Fit one score by weighted least squares.

    Args:
        mixes: the shares of each arm, `(arms, dimensions)`.
        values: the score of each arm, `(arms,)`, positive.
        weights: of each arm, `(arms,)`; equal when None.
        start: a fit to begin with; several floors are tried when None.
    """
    from scipy.optimize import least_squares

    scale = np.sqrt(np.ones_like(values) if weights is None else weights)
    least = float(values.min())

    def residuals(found: Values) -> Values:
        return scale * (found[0] + np.exp(np.clip(mixes @ found[1:], -60, 60)) - values)

    def jacobian(found: Values) -> Values:
        rises = np.exp(np.clip(mixes @ found[1:], -60, 60))
        return scale[:, None] * np.column_stack([np.ones_like(rises), rises[:, None] * mixes])

    starts = [np.array([start.floor, *start.slopes])] if start else [_begin(mixes, values, part) for part in _FLOORS]
    bounds = ([0.0] + [-np.inf] * mixes.shape[1], [least] + [np.inf] * mixes.shape[1])
    settings: dict[str, Any] = {"jac": jacobian, "bounds": bounds, "x_scale": "jac", "max_nfev": 200}
    tried = [least_squares(residuals, np.clip(one, *bounds), **settings) for one in starts]
    found = tried[int(np.argmin([one.cost for one in tried]))].x
    return ScoreFit(float(found[0]), found[1:])


def _begin(mixes: Shares, values: Values, part: float) -> Values:
    """Return the parameters of a fit whose floor is a part of the least value."""
    floor = part * float(values.min())
    slopes, *_ = np.linalg.lstsq(mixes, np.log(values - floor), rcond=None)
    return np.array([floor, *slopes])


def predict_objective(fits: Mapping[str, ScoreFit], parts: Mapping[str, float], mixes: Shares) -> Values:
    """Return the weighted mean of the fitted scores, `(mixes,)`, for several mixes."""
    return sum((parts[name] * fit.predict(mixes) for name, fit in fits.items()), np.zeros(len(mixes))) / sum(
        parts.values()
    )


def find_best(space: MixSpace, candidates: Shares, fits: Mapping[str, ScoreFit], parts: Mapping[str, float]) -> Shares:
    """Return the mix within the bounds with the lowest fitted objective, which is convex: it has one lowest value."""
    from scipy.optimize import LinearConstraint, minimize

    def objective(mix: Shares) -> float:
        return float(predict_objective(fits, parts, mix[None])[0])

    def slope(mix: Shares) -> Shares:
        slopes = [parts[name] * np.exp(mix @ fit.slopes) * fit.slopes for name, fit in fits.items()]
        return np.sum(slopes, axis=0) / sum(parts.values())

    settings: dict[str, Any] = {
        "method": "SLSQP",
        "bounds": list(zip(space.low, space.high, strict=True)),
        "constraints": LinearConstraint(np.ones((1, len(space.own))), 1, 1),
        "options": {"ftol": 1e-12, "maxiter": 200},
    }
    begin = candidates[int(np.argmin(predict_objective(fits, parts, candidates)))]
    found = minimize(objective, begin, jac=slope, **settings).x
    better = objective(found) <= objective(begin)
    return np.asarray(found) if better and space.holds(found, 1e-6) else begin


def fit_scores(
    space: MixSpace,
    candidates: Shares,
    mixes: Shares,
    values: Mapping[str, Values],
    parts: Mapping[str, float],
    *,
    resamples: int,
    seed: int,
) -> SearchFit:
    """Fit each score of an objective, find the best mix, and resample both.

    A resample weighs arms, and seeds of all arms together, at random: the Bayesian bootstrap (Rubin 1981). No resample
    leaves an arm out altogether, so each has a fit, however few the arms are.

    Args:
        space: the mixes within the bounds.
        candidates: mixes all over it, `(candidates, dimensions)`.
        mixes: the shares of each arm, `(arms, dimensions)`.
        values: for each score the values of each arm and seed, `(arms, seeds)`.
        parts: the weights of the scores.
        resamples: how many.
        seed: of the resamples.
    """
    means = {name: table.mean(axis=1) for name, table in values.items()}
    fits = {name: fit_score(mixes, mean) for name, mean in means.items()}
    generator = np.random.default_rng(seed)
    arms, seeds = next(iter(values.values())).shape
    # Residuals of a fit with p parameters are smaller than its errors: weights that vary more make up for it.
    spread = max(1, arms - count_parameters(mixes.shape[1])) / arms
    resampled: list[dict[str, ScoreFit]] = []
    for _ in range(resamples):
        arm_weights = generator.dirichlet(np.full(arms, spread)) * arms
        seed_weights = generator.dirichlet(np.ones(seeds))
        resampled.append(
            {name: fit_score(mixes, table @ seed_weights, arm_weights, fits[name]) for name, table in values.items()}
        )
    return SearchFit(
        fits,
        find_best(space, candidates, fits, parts),
        resampled,
        np.array([find_best(space, candidates, one, parts) for one in resampled]).reshape(resamples, len(space.own)),
        {name: mean - fits[name].predict(mixes) for name, mean in means.items()},
    )


def find_interval(values: Sequence[Any] | Values) -> tuple[Values, Values]:
    """Return the ends of the 95 % interval of resampled values, along their first axis."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.asarray(values), [tail, 1 - tail], axis=0)
    return low, high
