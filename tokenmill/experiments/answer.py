"""The answer of an ablation: for each score the paired differences of the arms from the first one, and what it cost.

`tell_answer` ends every experiment: its answer as JSON, and the page of `tokenmill compare` with the answer first.
"""

# scipy ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shards.errors import plural
from shards.stores.files import write_text
from shards.terminal.display import JsonObject
from shards.terminal.program import PROBLEMS, WHOLE, Outcome
from tokenmill.experiments.ablation import Ablation, Training, list_failed
from tokenmill.experiments.arms import Arm, list_changes
from tokenmill.experiments.proxy import ProxyResult
from trainer.evaluation.scores import LOSS_UNITS, find_own, show_score, unit_of
from trainer.results.comparison import compare_runs, name_once, write_comparison
from trainer.results.runs import read_run

CONFIDENCE = 0.95
POWER = 0.8
"""A difference counts as one that is seen if it is found in this part of all such ablations."""
MOST_SEEDS = 10_000
"""With more seeds, an answer is of no use."""


def answer_ablation(ablation: Ablation) -> JsonObject:
    """Return the answer of an ablation that has run, as rows of tables. Values that are not known are None.

    Returns:
        `name`: that of the ablation.
        `scores`: for each score and arm its `score`, `arm`, `values` by seed, `mean`, `spread` (the standard deviation
            over seeds), what `find_difference` returns of it and the first arm, and `answer`.
        `costs`: for each arm its `trainings` that did not fail, their `tokens`, how many of these were `repeated`,
            `hours` and `dollars`.
        `changes`: for each key that an arm changes, its `arm`, `key` and `value`.
        `failed`: for each training that failed, its `arm`, `seed` and `why`.
        `notes`: what a reader of the tables must know.
    """
    names = ablation.config.scores or ablation.arms[0].train.eval.score_names
    # Arms that share a seed may share a training, which is paid once, by the first of them.
    paid = {one.task.digest: one for one in reversed(ablation.trainings)}.values()
    answer: JsonObject = {
        "name": ablation.config.name,
        "scores": [row for name in names for row in _compare_arms(ablation, name)],
        "costs": [add_up(arm, [one.result for one in paid if one.arm is arm]) for arm in ablation.arms],
        "changes": [
            {"arm": arm.name, "key": key, "value": value}
            for arm in ablation.config.arms
            for key, _, value in (*list_changes("data", arm), *list_changes("train", arm))
        ],
        "failed": list_failed(ablation.trainings),
    }
    return answer | {"notes": list(_list_notes(ablation, answer))}


def _compare_arms(ablation: Ablation, score: str) -> Iterator[JsonObject]:
    """Yield the answer's row of each arm for one score."""
    base = ablation.results(ablation.arms[0].name)
    for arm in ablation.arms:
        own = ablation.results(arm.name)
        both = [tuple(one.scores.get(score, {}).get("value") for one in pair) for pair in zip(base, own, strict=True)]
        values = [value for _, value in both]
        known = [value for value in values if value is not None]
        row: JsonObject = {
            "score": score,
            "unit": unit_of(score),
            "arm": arm.name,
            "values": dict(zip(map(str, ablation.config.seeds), values, strict=True)),
            "mean": statistics.fmean(known) if known else None,
            "spread": statistics.stdev(known) if len(known) > 1 else None,
            **dict.fromkeys(("difference", "low", "high", "difference_spread", "seeds_needed")),
            "answer": "the first arm",
        }
        if arm is not ablation.arms[0]:
            # Seeds that failed in one of the arms have no pair.
            pairs = [pair for pair in both if None not in pair]
            row |= _describe_pairs(score, pairs, [*base, *own])
            if 0 < len(pairs) < len(values):
                row["answer"] += f" ({len(pairs)} of {plural(len(values), 'seed')}: the others failed)"
        yield row


def _describe_pairs(score: str, pairs: Sequence[tuple[Any, ...]], results: Sequence[ProxyResult]) -> JsonObject:
    """Return what the answer says of the pairs of values of two arms."""
    if len({result.texts.get(find_own(score, result.texts)) for result in results if not result.failed}) > 1:
        return {"answer": "other text: the arms were not scored on the same documents or items"}
    if not pairs:
        return {"answer": "not known: its trainings failed"}
    row, count = find_difference(*zip(*pairs, strict=True)), len(pairs)
    if count == 1:
        return row | {"answer": "one seed: the effect of chance is not known"}
    if row["low"] * row["high"] > 0:
        better = (row["difference"] < 0) == (unit_of(score) in LOSS_UNITS)
        return row | {"answer": "better" if better else "worse"}
    if row["difference_spread"] == 0:
        return row | {"answer": "no difference: equal with every seed"}
    found = "no difference seen"
    if len({b > a for a, b in pairs}) == 1:
        found = (
            f"no difference shown: {count} of {count} seeds have its sign, as {2 ** (1 - count):.0%} of equal arms do"
        )
    seeds = row["seeds_needed"]
    needed = "" if seeds is None else f"; about {plural(seeds, 'seed')} would show one of {abs(row['difference']):.2g}"
    return row | {"answer": f"{found}{needed}"}


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


def add_up(arm: Arm, results: Sequence[ProxyResult]) -> JsonObject:
    """Return for the answer what trainings of an arm cost, or of arms like it."""
    # What a failed training took is not known.
    results = [result for result in results if not result.failed]
    hours = sum(result.trained_seconds for result in results) / 3600
    price = arm.train.cost.gpu_usd_per_hour
    return {
        "arm": arm.name,
        "trainings": len(results),
        "tokens": arm.tokens * len(results),
        "repeated": sum(result.tokens_repeated for result in results),
        "hours": hours,
        "dollars": hours * price if price else None,
    }


def _list_notes(ablation: Ablation, answer: JsonObject) -> Iterator[str]:
    seeds = len(ablation.config.seeds)
    if seeds == 1:
        yield "one seed: a difference may be chance, and no interval is known. Give at least three seeds."
    else:
        yield (
            f"difference: the mean over {plural(seeds, 'seed')} of arm minus {ablation.arms[0].name}, paired by seed; "
            f"in brackets its {CONFIDENCE:.0%} interval (Student's t). One in twenty comparisons of equal arms shows "
            f"a difference by chance. The spread of the differences has {plural(seeds - 1, 'degree')} of freedom "
            f"(t-factor {find_factor(seeds):.1f}): only a difference of at least "
            f"{find_factor(seeds) / math.sqrt(seeds):.1f} times it is shown. The seeds named are a rough estimate."
        )
    # One of twenty comparisons claims a difference by chance.
    compared = sum(row["difference"] is not None and row["low"] is not None for row in answer["scores"])
    if compared > 10:
        yield f"{compared} comparisons: expect about {compared / 20:.0f} by chance. Decide by a score chosen before."
    yield from note_failed(answer["failed"])
    for row in answer["costs"]:
        if row["repeated"]:
            yield (
                f"arm {row['arm']}: of {plural(row['tokens'], 'token')}, {row['repeated']:,} are repeated: its set "
                "has fewer tokens than it trains on"
            )
    if any(arm.own_tokenizer for arm in ablation.arms[1:]):
        yield "the arms have different tokenizers, and a token is not the same amount of text: compare bits per byte"


def note_failed(failed: Sequence[JsonObject]) -> Iterator[str]:
    """Yield a note of an answer for each training that failed."""
    for row in failed:
        yield f"failed: arm {row['arm']}, seed {row['seed']}: {row['why']}. Run the same command again to retry it."


def show_scores(scores: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the table of the scores of an answer as people read it, a score's name once."""
    rows: list[JsonObject] = []
    for row in scores:
        difference = None
        if row["difference"] is not None:
            interval = "" if row["low"] is None else f" [{row['low']:+.4f}, {row['high']:+.4f}]"
            difference = f"{row['difference']:+.4f}{interval}"
        shown = {"score": row["score"], "arm": row["arm"], "mean": show_score(row["mean"], row["spread"])}
        rows.append(shown | {"difference": difference, "answer": row["answer"]})
    return name_once(rows)


def show_tables(answer: JsonObject) -> dict[str, list[JsonObject]]:
    """Return the tables of an ablation's answer as people read them, by their titles."""
    return {
        "Differences": show_scores(answer["scores"]),
        "What the arms change": [row | {"value": json.dumps(row["value"])} for row in answer["changes"]],
        "Cost": answer["costs"],
    }


def tell_answer(
    ablation: Ablation,
    trainings: Iterable[Training],
    answer: JsonObject,
    tables: Mapping[str, list[JsonObject]],
    name: str,
    others: Sequence[Path] = (),
) -> Outcome:
    """Write the answer of an experiment and its page, and return it; exit status 1 if a training failed.

    Args:
        ablation: the experiment's folder.
        trainings: all of its trainings.
        answer: with its `name`, `notes` and the trainings that `failed`.
        tables: the answer as people read it, by title.
        name: the name of the files.
        others: other files that were written.

    Raises:
        OSError: a file cannot be written.
    """
    out = ablation.out
    write_text(out / f"{name}.json", json.dumps(answer, indent=2) + "\n")
    files = [out / f"{name}.json", *others]
    # Arms may share a training.
    done = {one.task.digest: one for one in trainings if not one.result.failed}
    runs = [
        replace(read_run(ablation.results_folder(one)), name=f"{one.arm.name} seed {one.seed}") for one in done.values()
    ]
    if runs:
        compared = compare_runs(runs)
        shown = {"title": answer["name"], "notes": answer["notes"], "answers": {**tables}}
        files += write_comparison(runs, compared, out, name=name, shown=shown)
    lines = [answer["name"], *tables.values(), *answer["notes"], *map(str, files)]
    return Outcome(answer, lines, PROBLEMS if answer["failed"] else WHOLE)
