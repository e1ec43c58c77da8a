"""The mixes that a search tries, and the fit of their scores: known answers are found again."""

import numpy as np
import pytest

from tokenmill.mix_search.fit import ScoreFit, find_best, find_interval, fit_score, fit_scores, predict_objective
from tokenmill.mix_search.search import split_rounds
from tokenmill.mix_search.space import MixSpace, draw_near, list_candidates, spread_out

SPACE = MixSpace(
    ({"web": 1.0}, {"maths": 1.0}, {"code": 0.75, "notes": 0.25}),
    own=np.array([0.87, 0.1, 0.03]),
    low=np.array([0.2, 0.0, 0.0]),
    high=np.array([1.0, 0.5, 0.5]),
)
TRUTH = {
    "web_bpb": ScoreFit(0.0, np.array([1.2, 2.3, 2.4])),  # log-linear
    "maths_bpb": ScoreFit(-6.0, np.array([2.1, 0.8, 1.9])),
    "code_bpb": ScoreFit(-2.0, np.array([1.8, 1.7, 0.6])),
}
PARTS = dict.fromkeys(TRUTH, 1.0)
CANDIDATES = list_candidates(SPACE)


def design(count: int) -> np.ndarray:
    return np.array([SPACE.own, *spread_out(SPACE, CANDIDATES, count - 1, SPACE.own[None])])


def test_mixes_are_within_the_bounds_and_apart():
    assert all(SPACE.holds(mix) for mix in CANDIDATES)
    chosen = design(20)
    assert len(chosen) == 20
    assert all(SPACE.holds(mix) for mix in chosen)
    distances = np.linalg.norm(chosen[:, None] - chosen[None], axis=2) + np.eye(20)
    assert distances.min() > 0.08
    # A longer design begins with a shorter one, so what was trained stays of use.
    assert np.array_equal(design(9), chosen[:9])
    # Rounds come nearer to the best, and stay within the bounds.
    best = np.array([0.5, 0.5, 0.0])
    near = [np.linalg.norm(draw_near(CANDIDATES, best, number) - best, axis=1).max() for number in (2, 3)]
    assert near[1] < near[0] < np.linalg.norm(CANDIDATES - best, axis=1).max()
    assert all(SPACE.holds(mix) for mix in draw_near(CANDIDATES, best, 2))


def test_weights_are_percent_and_groups_keep_their_proportions():
    weights = SPACE.weights(np.array([0.6, 0.0, 0.4]))
    assert weights == {"web": 60.0, "maths": 1e-6, "code": 30.0, "notes": 10.0}


@pytest.mark.parametrize("name", TRUTH)
def test_fit_finds_the_numbers_of_a_score_again(name: str):
    mixes = design(12)
    found = fit_score(mixes, TRUTH[name].predict(mixes), np.ones(len(mixes)))
    assert found.exponent == pytest.approx(TRUTH[name].exponent, abs=1e-4)
    assert found.pure == pytest.approx(TRUTH[name].pure, abs=1e-4)


def test_best_mix_is_the_lowest_within_the_bounds():
    # By symmetry: two scores that each fall with one source.
    pair = {
        "maths_bpb": ScoreFit(-3.0, np.array([2.0, 1.0, 2.0])),
        "code_bpb": ScoreFit(-3.0, np.array([2.0, 2.0, 1.0])),
    }
    assert find_best(SPACE, CANDIDATES, pair, dict.fromkeys(pair, 1.0)) == pytest.approx([0.2, 0.4, 0.4], abs=1e-4)
    # One score alone is best at a bound.
    alone = {"maths_bpb": pair["maths_bpb"]}
    best = find_best(SPACE, CANDIDATES, alone, {"maths_bpb": 1.0})
    assert best[1] == pytest.approx(0.5)
    # The three scores: no mix of a grid is lower.
    best = find_best(SPACE, CANDIDATES, TRUTH, PARTS)
    steps = np.arange(0, 0.51, 0.01)
    grid = np.array([mix for a in steps for b in steps if SPACE.holds(mix := np.array([1 - a - b, a, b]))])
    assert (predict_objective(TRUTH, PARTS, best[None]) <= predict_objective(TRUTH, PARTS, grid)).all()


def test_intervals_cover_the_best_mix():
    mixes, truth = design(12), find_best(SPACE, CANDIDATES, TRUTH, PARTS)
    covered, widths = np.zeros(3), np.zeros(3)
    for draw in range(4):
        generator = np.random.default_rng(draw)
        shift = generator.normal(0, 0.02, 3)  # of a seed, equal for all arms
        values = {
            name: fit.predict(mixes)[:, None] + shift + generator.normal(0, 0.01, (12, 3))
            for name, fit in TRUTH.items()
        }
        found = fit_scores(SPACE, CANDIDATES, mixes, values, PARTS, resamples=20)
        assert SPACE.holds(found.best, 1e-6)
        low, high = find_interval(found.resampled_best)
        covered += (low <= truth) & (truth <= high)
        widths += high - low
    assert (covered >= 3).all()
    assert (widths / 4 < 0.1).all()


def test_rounds_share_the_arms():
    assert split_rounds(16, 3, 4) == [7, 4, 3]
    assert split_rounds(16, 1, 4) == [14]
    assert split_rounds(6, 3, 4) == [4]
    assert all(sum(split_rounds(arms, 4, 5)) == arms - 2 for arms in range(7, 40))
