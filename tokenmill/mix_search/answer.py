"""The answer of a mix search: the found weights with their intervals, how good the fits are, and what was measured."""

from collections.abc import Iterator

import numpy as np

from shards.errors import plural
from shards.terminal.display import JsonObject
from tokenmill.experiments.ablation import list_failed
from tokenmill.experiments.answer import CONFIDENCE, add_up, answer_ablation, note_failed, show_scores
from tokenmill.mix_search.fit import find_interval, predict_objective
from tokenmill.mix_search.search import OBJECTIVE, OWN, WINNER, MixSearch
from tokenmill.mix_search.space import DECIMALS
from trainer.evaluation.scores import show_score

_FAR_OFF = 2
"""A fit that misses the arms by this many times their noise has the wrong form for this score."""


def answer_search(search: MixSearch) -> JsonObject:
    """Return the answer of a mix search that has run, as rows of tables. Values that are not known are None.

    Returns:
        `name`: that of the search.
        `weights`: for each dimension of the search its `sources`, the recipe's `own` share, the `found` one with its
            interval `low` to `high`, the bounds `least` and `greatest`, and `epochs` of the real run, about.
        `objective`: its value in the recipe's own mix and in the winner: `predicted` by the fit, with the interval
            `low` to `high` of the resamples, and `measured`.
        `fits`: for each score its `weight` in the objective, `exponent` and `pure` scores by dimension, `error` (root
            mean square of what the fit misses the arms by), and `noise` (the spread over seeds of an arm's mean).
        `comparison`: the rows of the winner's difference from the recipe's own mix, as an ablation has them.
        `costs`: of all trainings together, as an ablation has them of an arm.
        `arms`: for each arm its shares by dimension, `shares`, and the mean of each score, `scores`.
        `failed`: for each training that failed, its `arm`, `seed` and `why`.
        `notes`: what a reader of the tables must know.
    """
    last = answer_ablation(search.last, alone=OBJECTIVE) if search.last else JsonObject(scores=[], notes=[])
    paid = {one.task.digest: one.result for one in search.trainings}
    costs = add_up(search.own, list(paid.values()))
    del costs["arm"]
    # What was measured of each arm.
    means = {score: search.values(score).mean(axis=1) for score in search.config.objective}
    arms = [
        {
            "arm": name,
            "shares": dict(zip(search.space.names, map(float, mix), strict=True)),
            "scores": {score: float(mean[index]) for score, mean in means.items()},
        }
        for index, (name, mix) in enumerate(search.mixes.items())
    ]
    answer: JsonObject = {
        "name": search.config.name,
        "weights": list(_describe_weights(search)),
        "objective": list(_describe_objective(search, last["scores"])),
        "fits": list(_describe_fits(search)),
        "comparison": last["scores"],
        "costs": costs,
        "arms": arms,
        "failed": list_failed(search.trainings),
    }
    # Those of the comparison may have failed trainings, too.
    notes = dict.fromkeys([*_list_notes(search, answer), *last["notes"], *note_failed(answer["failed"])])
    return answer | {"notes": [*notes]}


def _describe_weights(search: MixSearch) -> Iterator[JsonObject]:
    low, high = find_interval(search.fit.resampled_best)
    space = search.space
    for index, (name, group) in enumerate(zip(space.names, space.groups, strict=True)):
        share = float(search.winner[index])
        # How often the real run takes each source of the dimension whose size is known.
        epochs = [
            share * part * search.target / max(1, tokens)
            for source, part in group.items()
            if (tokens := search.sizes[source][0]) is not None
        ]
        yield {
            "sources": name,
            "own": float(space.own[index]),
            "found": share,
            "low": round(float(low[index]), DECIMALS + 2),
            "high": round(float(high[index]), DECIMALS + 2),
            "least": float(space.low[index]),
            "greatest": float(space.high[index]),
            "epochs": max(epochs, default=None),
        }


def _describe_objective(search: MixSearch, comparison: list[JsonObject]) -> Iterator[JsonObject]:
    parts = search.config.objective
    measured = {row["arm"]: row["mean"] for row in comparison if row["score"] == OBJECTIVE}
    for name, mix in ((OWN, search.space.own), (WINNER, search.winner)):
        # The interval comes from the fits of the resamples.
        resampled = [predict_objective(fits, parts, mix[None])[0] for fits in search.fit.resampled]
        low, high = find_interval(resampled)
        yield {
            "mix": name,
            "predicted": float(predict_objective(search.fit.scores, parts, mix[None])[0]),
            "low": float(low),
            "high": float(high),
            "measured": measured.get(name),
        }


def _describe_fits(search: MixSearch) -> Iterator[JsonObject]:
    mixes = np.array(list(search.mixes.values()))
    for score, weight in search.config.objective.items():
        fit, values = search.fit.scores[score], search.values(score)
        missed = values.mean(axis=1) - fit.predict(mixes)
        # Residuals of a fit with p parameters are smaller than its errors, by (n - p) / n.
        free = max(1, len(values) - len(fit.pure) - 1)
        arms, seeds = values.shape
        # Seeds shift all arms alike; what is left is the noise of a comparison.
        left = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
        noise = np.sqrt((left**2).sum() / ((arms - 1) * (seeds - 1)) / seeds) if seeds > 1 else None
        yield {
            "score": score,
            "weight": weight,
            "exponent": fit.exponent,
            "pure": dict(zip(search.space.names, map(float, fit.pure), strict=True)),
            "error": float(np.sqrt((search.fit.arm_weights * missed**2).sum() / free)),
            "noise": None if noise is None else float(noise),
        }


def _list_notes(search: MixSearch, answer: JsonObject) -> Iterator[str]:
    yield (
        f"in brackets: {CONFIDENCE:.0%} intervals, by {plural(search.config.resamples, 'resample')} of arms and seeds. "
        "They hold if the fit has the right form, and for models of this size and these tokens."
    )
    if len(search.config.seeds) == 1:
        yield "one seed: the intervals do not cover what another seed would do. Give several seeds."
    if chosen := {*search.config.last_seeds} & {*search.config.seeds}:
        yield (
            f"{plural(len(chosen), 'seed')} of the comparison chose the winner, too, which favours it. Leave out "
            "final_seeds: then all seeds of the comparison are new."
        )
    elif search.last:
        yield "measured: with other seeds than those of the fit. Seeds shift all mixes alike: compare differences."
    # What a reader must know of the sources, the bounds and the fits.
    scarce = [one.name for one in search.recipe.sources if search.sizes[one.name][1] < one.take]
    if scarce:
        yield (
            f"repeated as in the real run of {plural(search.target, 'token')}: {', '.join(scarce)}; each arm takes "
            f"{search.config.tokens / search.target:.4g} of the documents that the real run takes"
        )
    at_bounds = [
        row["sources"]
        for row in answer["weights"]
        if (row["found"] - row["least"] < 1e-3 and row["least"] > 0)
        or (row["greatest"] - row["found"] < 1e-3 and row["greatest"] < 1)
    ]
    if at_bounds:
        yield f"at a bound: {', '.join(at_bounds)}. Beyond it may be better; one score alone always ends at bounds."
    for row in answer["fits"]:
        if row["noise"] and row["error"] > _FAR_OFF * row["noise"]:
            yield (
                f"{row['score']}: the fit misses the arms by {row['error']:.4f}; their noise is {row['noise']:.4f}. "
                "This fit is rough: trust the measured scores, and search again within narrower bounds."
            )
    if not search.space.holds(search.space.own):
        yield "the recipe's own mix is out of the bounds"
    if search.last is None:
        yield "the best mix is the recipe's own: there is nothing to compare"


def show_tables(answer: JsonObject) -> dict[str, list[JsonObject]]:
    """Return the tables of a mix search's answer as people read them, by their titles."""
    weights = [
        {
            "source": row["sources"],
            "recipe": f"{row['own']:.2%}",
            "found": f"{row['found']:.2%} [{row['low']:.2%}, {row['high']:.2%}]",
            "bounds": f"{row['least']:.0%} to {row['greatest']:.0%}",
            "epochs": "below 1" if (row["epochs"] or 0) < 1 else f"about {row['epochs']:.1f}",
        }
        for row in answer["weights"]
    ]
    objective = [
        {
            "mix": row["mix"],
            "predicted": f"{row['predicted']:.4f} [{row['low']:.4f}, {row['high']:.4f}]",
            "measured": show_score(row["measured"], None),
        }
        for row in answer["objective"]
    ]
    fits = [
        {
            "score": row["score"],
            "weight": f"{row['weight']:g}",
            "fit's error": show_score(row["error"], None),
            "noise": show_score(row["noise"], None),
        }
        for row in answer["fits"]
    ]
    return {
        "Found shares": weights,
        "Objective": objective,
        "Winner and recipe": show_scores(answer["comparison"]),
        "Fits": fits,
        "Cost": [answer["costs"]],
    }
