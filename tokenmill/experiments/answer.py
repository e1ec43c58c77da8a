"""The answer of an ablation: for each score the paired differences of the arms from the first one, and what it cost.

`tell_answer` ends every experiment: its answer as JSON, and the page of `tokenmill compare` with the answer first.
"""

# scipy ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shards.errors import plural
from shards.stores.files import write_text
from shards.terminal.display import JsonObject
from shards.terminal.program import PROBLEMS, WHOLE, Outcome
from tokenmill.experiments.ablation import LOOKS_FILE, Ablation, Training, list_failed
from tokenmill.experiments.arms import Arm, list_changes
from tokenmill.experiments.proxy import ProxyResult
from trainer.evaluation.scores import find_own, show_score, unit_of
from trainer.results.comparison import compare_runs, name_once, write_comparison
from trainer.results.runs import read_run

CONFIDENCE = 0.95
FAMILY = 3
"""So many comparisons, and more, are corrected for their number. Two of equal arms claim a difference in a tenth."""


def answer_ablation(ablation: Ablation, alone: str = "") -> JsonObject:
    """Return the answer of an ablation that has run, as rows of tables. Values that are not known are None.

    Args:
        ablation: the ablation.
        alone: a score that decides by itself: it is not corrected for the number of the other comparisons.

    Returns:
        `name`: that of the ablation.
        `scores`: for each score and arm its `score`, `arm`, `values` by seed, `mean`, `spread` (the standard deviation
            over seeds), `pairs` (the seeds known of the first arm, too), `difference` (the mean over them of the arm's
            value less that of the first arm), `difference_spread` (its standard deviation), `looks`, its interval
            `low` to `high` of the `confidence` that is left of 95% after corrections, and `answer`.
        `costs`: for each arm its `trainings` that did not fail, their `tokens`, how many of these were `repeated`,
            `hours` and `dollars`.
        `changes`: for each key that an arm changes, its `arm`, `key` and `value`.
        `failed`: for each training that failed, its `arm`, `seed` and `why`.
        `notes`: what a reader of the tables must know.
    """
    names = ablation.config.scores or ablation.arms[0].train.eval.score_names
    # Arms that share a seed may share a training, which is paid once, by the first of them.
    paid = {one.task.digest: one for one in reversed(ablation.trainings)}.values()
    rows = [row for name in names for row in _compare_arms(ablation, name)]
    for is_alone in (True, False):
        decide([row for row in rows if (row["score"] == alone) is is_alone])
    answer: JsonObject = {
        "name": ablation.config.name,
        "scores": rows,
        "costs": [add_up(arm, [one.result for one in paid if one.arm is arm]) for arm in ablation.arms],
        "changes": [
            {"arm": arm.name, "key": key, "value": value}
            for arm in ablation.config.arms
            for key, _, value in (*list_changes("data", arm), *list_changes("train", arm))
        ],
        "failed": list_failed(ablation.trainings),
    }
    return answer | {"notes": list(_list_notes(ablation, answer, alone))}


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
            **dict.fromkeys(("pairs", "difference", "difference_spread", "low", "high", "confidence")),
            "looks": ablation.looks.get(arm.name, 1),
            "answer": "the first arm",
        }
        if arm is not ablation.arms[0]:
            # Seeds that failed in one of the arms have no pair.
            pairs = [pair for pair in both if None not in pair]
            row |= _describe_pairs(score, pairs, [*base, *own])
        yield row


def _describe_pairs(score: str, pairs: Sequence[tuple[Any, ...]], results: Sequence[ProxyResult]) -> JsonObject:
    """Return what the pairs of values of two arms say by themselves."""
    if have_other_texts(score, results):
        return {"answer": "other text: the arms were not scored on the same documents or items"}
    if not pairs:
        return {"answer": "not known: its trainings failed"}
    differences = [b - a for a, b in pairs]
    row: JsonObject = {"pairs": len(pairs), "difference": statistics.fmean(differences)}
    if len(pairs) == 1:
        return row | {"answer": "one seed: the effect of chance is not known"}
    found = "no difference seen"
    if len({difference > 0 for difference in differences}) == 1:
        signs = f"{len(pairs)} of {len(pairs)} seeds have its sign"
        found = f"no difference shown: {signs}, as {2 ** (1 - len(pairs)):.0%} of equal arms do"
    return row | {"difference_spread": statistics.stdev(differences), "answer": found}


def have_other_texts(score: str, results: Iterable[ProxyResult]) -> bool:
    """Return whether trainings had a score of an ablation on different text."""
    return len({result.texts.get(find_own(score, result.texts)) for result in results if not result.failed}) > 1


def decide(rows: Sequence[JsonObject]) -> None:
    """Add to comparisons of an answer, which are one family, their intervals, and which are better or worse.

    The interval of a comparison is that of Student's t for paired samples. Each further look has half the chance of an
    error that the one before had, so that those of all looks add up to at most twice 5% (alpha spending, Lan and DeMets
    1983). Of `FAMILY` comparisons or more, each has the level at which Holm's method (1979) tests it. So an interval
    leaves out 0 just if the comparison is decided.
    """
    from scipy import stats

    tests = [row for row in rows if row["difference_spread"] is not None]
    scales = [row["difference_spread"] / math.sqrt(row["pairs"]) for row in tests]
    chances: list[float] = []
    for row, scale in zip(tests, scales, strict=True):
        t = abs(row["difference"]) / scale if scale else math.inf if row["difference"] else 0.0
        chances.append(float(2 * stats.t.sf(t, row["pairs"] - 1)) * 2 ** (row["looks"] - 1))
    left = len(tests)
    for number in sorted(range(left), key=chances.__getitem__):
        row, error = tests[number], (1 - CONFIDENCE) / (left if len(tests) >= FAMILY else 1)
        level = error / 2 ** (row["looks"] - 1)
        half = find_factor(row["pairs"], 1 - level) * scales[number]
        row |= {"low": row["difference"] - half, "high": row["difference"] + half, "confidence": 1 - level}
        if row["difference_spread"] == 0 == row["difference"]:
            row["answer"] = "no difference: equal with every seed"
        elif chances[number] <= error:
            better = (row["difference"] < 0) == (row["unit"] != "accuracy")  # of any other unit, less is better
            row["answer"], left = "better" if better else "worse", left - 1
        if row["pairs"] < (seeds := len(row["values"])):
            row["answer"] += f" ({row['pairs']} of {plural(seeds, 'seed')}: the others failed)"


def find_factor(seeds: int, confidence: float = CONFIDENCE) -> float:
    """Return how many of its standard errors the interval of a mean reaches to each side: the factor of Student's t."""
    from scipy import stats

    return float(stats.t.ppf((1 + confidence) / 2, seeds - 1))


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


def _list_notes(ablation: Ablation, answer: JsonObject, alone: str) -> Iterator[str]:
    seeds = len(ablation.config.seeds)
    if seeds == 1:
        yield "one seed: a difference may be chance, and no interval is known. Give at least three seeds."
    else:
        yield (
            f"difference: the mean over {plural(seeds, 'seed')} of arm minus {ablation.arms[0].name}, paired by seed; "
            f"in brackets its {CONFIDENCE:.0%} interval (Student's t), which holds for a number of seeds chosen before "
            "any answer. One in twenty comparisons of equal arms shows a difference by chance. The spread of the "
            f"differences has {plural(seeds - 1, 'degree')} of freedom (t-factor {find_factor(seeds):.1f}): only a "
            f"difference of at least {find_factor(seeds) / math.sqrt(seeds):.1f} times it is shown."
        )
    compared = [row for row in answer["scores"] if row["confidence"] is not None]
    family = sum(row["score"] != alone for row in compared)
    if family >= FAMILY:
        yield (
            f"{family} comparisons: Holm's correction widens their intervals, so that one in twenty ablations of equal "
            "arms shows any difference. With fewer `scores`, chosen before, they are narrower."
        )
    if (looks := max((row["looks"] for row in compared), default=1)) > 1:
        spent = (1 - CONFIDENCE) / 2 ** (looks - 1)
        yield (
            f"look {looks}: earlier answers were of other seeds or trainings ({LOOKS_FILE}). Each look has half the "
            f"chance of an error of the one before (alpha spending), so intervals are widened to {1 - spent:.4%} or "
            "more. Of equal arms, all looks together show a difference in at most "
            f"{2 * (1 - CONFIDENCE) - spent:.2%}, however many in 10%."
        )
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
