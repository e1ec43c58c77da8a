"""How scores depend on the mix: a fit for each score, the best mix by the fits, and bootstrap intervals.

    score = (shares . pure ** exponent) ** (1 / exponent)

The score of a mix is the power mean of what each source would give alone, weighted by the shares. With exponent 0 it is
the geometric mean, exp(shares . log(pure)): the log-linear form of RegMix (arXiv:2407.01492) and Olmix. The first
percent of a source lowers a score of its kind far more than the next; a negative exponent says so, where the
log-linear form cannot. It is a power law of the effective amount of data, to which every source adds (Hernandez et al.,
arXiv:2102.01293), with the exponent -1 / exponent.

One score only rises or falls along a line of mixes, so by one score the best mix is at a bound; a mean of several
scores may have its best between. No form holds everywhere: a score that rises again because its source is repeated
too often has none. So arms count less the worse their objective is, and the fit is best where the best mix is.
"""

# scipy ships no complete types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shards.format.arrays import Float64s
from tokenmill.experiments.answer import CONFIDENCE
from tokenmill.mix_search.space import MixSpace, Shares

_EXPONENTS = (0.0, -2.0, -6.0, -18.0)
"""Where searches of the exponent begin."""
_LEAST_EXPONENT, _GREATEST_EXPONENT = -60.0, 1.0
"""Beyond 1 a score would no longer be convex in the shares; that of -60 is nearly the least of the pure scores."""
_ALMOST_ZERO = 1e-5
"""So small an exponent is taken for 0, where its formula would lose all digits."""
_MOST_LOGARITHM = 10.0
"""Bounds of the logarithms of pure scores: those of sources without effect are not known."""


class ScoreFit(NamedTuple):
    """The fit of one score."""

    exponent: float
    """Of the power mean; 0 is the log-linear form."""
    pure: Shares
    """By dimension, what that source would give alone, in the unit of the score."""

    def predict(self, mixes: Shares) -> Float64s:
        """Return the score of each mix by the fit, `(mixes,)`."""
        return np.exp(_fit_logarithms(mixes, self.exponent, np.log(self.pure)))


def _fit_logarithms(mixes: Shares, exponent: float, logs: Shares) -> Float64s:
    """Return the logarithm of each mix's score by a fit, `(mixes,)`."""
    from scipy.special import logsumexp

    if abs(exponent) < _ALMOST_ZERO:
        return mixes @ logs
    return np.asarray(logsumexp(exponent * logs, axis=1, b=mixes)) / exponent


class SearchFit(NamedTuple):
    """The fits of the scores of an objective, the best mix by them, and what the bootstrap says of both."""

    scores: dict[str, ScoreFit]
    best: Shares
    resampled: list[dict[str, ScoreFit]]
    """The fits of each resample."""
    resampled_best: Shares
    """The best mix of each resample, `(resamples, dimensions)`."""
    arm_weights: Float64s
    """How much each arm counts, `(arms,)`, 1 on average."""


def fit_score(mixes: Shares, values: Float64s, weights: Float64s, start: ScoreFit | None = None) -> ScoreFit:
    """Fit one score by weighted least squares of its logarithm: noise grows with the score.

    Args:
        mixes: the shares of each arm, `(arms, dimensions)`.
        values: the score of each arm, `(arms,)`, positive.
        weights: of each arm, `(arms,)`.
        start: a fit to begin with; several exponents are tried when None.
    """
    from scipy.optimize import least_squares

    scale, wanted = np.sqrt(weights), np.log(values)

    def residuals(found: Float64s) -> Float64s:
        return scale * (_fit_logarithms(mixes, found[0], found[1:]) - wanted)

    # The log-linear fit is where the search begins.
    linear, *_ = np.linalg.lstsq(scale[:, None] * mixes, scale * wanted, rcond=None)
    starts = [[start.exponent, *np.log(start.pure)]] if start else [[one, *linear] for one in _EXPONENTS]
    most = np.full(mixes.shape[1], _MOST_LOGARITHM)
    settings: dict[str, Any] = {
        "bounds": ([_LEAST_EXPONENT, *-most], [_GREATEST_EXPONENT, *most]),
        "x_scale": "jac",
        "max_nfev": 200,
    }
    tried = [least_squares(residuals, np.clip(one, *settings["bounds"]), **settings) for one in starts]
    found = tried[int(np.argmin([one.cost for one in tried]))].x
    return ScoreFit(float(found[0]), np.exp(found[1:]))


def predict_objective(fits: Mapping[str, ScoreFit], parts: Mapping[str, float], mixes: Shares) -> Float64s:
    """Return the weighted mean of the fitted scores, `(mixes,)`, for several mixes."""
    return sum((parts[name] * fit.predict(mixes) for name, fit in fits.items()), np.zeros(len(mixes))) / sum(
        parts.values()
    )


def find_best(space: MixSpace, candidates: Shares, fits: Mapping[str, ScoreFit], parts: Mapping[str, float]) -> Shares:
    """Return the mix within the bounds with the lowest fitted objective, which is convex: it has one lowest value."""
    from scipy.optimize import LinearConstraint, minimize

    def objective(mix: Shares) -> float:
        return float(predict_objective(fits, parts, mix[None])[0])

    settings: dict[str, Any] = {
        "method": "SLSQP",
        "bounds": list(zip(space.low, space.high, strict=True)),
        "constraints": LinearConstraint(np.ones((1, len(space.own))), 1, 1),
        "options": {"ftol": 1e-12, "maxiter": 200},
    }
    # From the best candidate down the slope.
    begin = candidates[int(np.argmin(predict_objective(fits, parts, candidates)))]
    found = minimize(objective, begin, **settings).x
    better = objective(found) <= objective(begin)
    return np.asarray(found) if better and space.holds(found, 1e-6) else begin


def fit_scores(
    space: MixSpace,
    candidates: Shares,
    mixes: Shares,
    values: Mapping[str, Float64s],
    parts: Mapping[str, float],
    *,
    resamples: int,
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
    """
    means = {name: table.mean(axis=1) for name, table in values.items()}
    # The weight of an arm falls by a factor of e for each mean excess by which its objective is above the lowest.
    objective = np.average([means[name] for name in parts], axis=0, weights=list(parts.values()))
    excess = objective - objective.min()
    counts = np.exp(-excess / max(excess.mean(), np.finfo(np.float64).tiny))
    counts /= counts.mean()
    fits = {name: fit_score(mixes, mean, counts) for name, mean in means.items()}
    generator = np.random.default_rng(0)
    arms, seeds = next(iter(values.values())).shape
    # Residuals of a fit with p parameters are smaller than its errors: weights that vary more make up for it. As many
    # equal arms as these unequal ones are worth (Kish 1965).
    worth = arms / (counts**2).mean()
    spread = max(1, worth - space.parameters) / worth
    resampled: list[dict[str, ScoreFit]] = []
    for _ in range(resamples):
        arm_weights = generator.dirichlet(np.full(arms, spread)) * arms * counts
        seed_weights = generator.dirichlet(np.ones(seeds))
        resampled.append(
            {name: fit_score(mixes, table @ seed_weights, arm_weights, fits[name]) for name, table in values.items()}
        )
    return SearchFit(
        fits,
        find_best(space, candidates, fits, parts),
        resampled,
        np.array([find_best(space, candidates, one, parts) for one in resampled]).reshape(resamples, len(space.own)),
        counts,
    )


def find_interval(values: Sequence[Any] | Float64s) -> tuple[Float64s, Float64s]:
    """Return the ends of the 95% bootstrap interval of resampled values, along their first axis."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.asarray(values), [tail, 1 - tail], axis=0)
    return low, high
