"""Several runs compared: their last scores and the differences from the first run, what they took, what differs.

`write_comparison` writes this with the runs' curves as a page that needs no network, and the picture as PNG and SVG.
"""

import base64
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shards.config import list_of, table_of
from shards.report.render import TEMPLATES, make_render_environment, read_style
from shards.stores.files import make_folder, write_bytes
from shards.terminal.display import JsonObject
from trainer.evaluation.scores import (
    PERPLEXITY,
    VALIDATION_SCORES,
    find_own,
    find_stderr,
    list_scores,
    read_score,
    show_score,
    unit_of,
)
from trainer.ledger import show_bill
from trainer.metrics import Record, last_record
from trainer.results.picture import choose_axes, draw_runs, render_figure
from trainer.results.runs import TrainingRun
from trainer.run_folder import read_samples

OTHER_TEXT = "other text"
"""Why a score of two runs does not compare; in a table it stands in place of the difference."""
SURE = 2
"""Standard errors that a difference must exceed: one of twenty differences by chance does."""


def compare_runs(runs: Sequence[TrainingRun]) -> JsonObject:
    """Compare runs with the first of them: return the rows of tables. Values that are not known are None.

    Returns:
        `verdict`: for each run but the first a sentence about the first score that compares.
        `runs`: for each run its `run` (the name), `folder`, `steps`, `tokens`, `hours`, `dollars` and `tokens_per_s`,
            the median of its steps.
        `scores`: for each score and run its `score`, `run`, `value` and `stderr` `at_step` and `at_tokens`, the
            `difference` from the first run, its `difference_stderr`, and `why_no_difference`.
        `bill`: for each run and each row of `draw_up_bill` its `run` and that row.
        `samples`: for each run, prompt and step its `run`, `prompt`, `step` and `text`.
        `changes`: for each key of the recipes that is not the same in all runs, and for the set and the tokenizer, its
            `key` and the value of each run by name; of a key that changed in a run, a list of `from_step` and `value`.
        `notes`: what is odd about the runs, and about comparing them.
    """
    # Where they are compared: the last validation after as many tokens in all of them. A run without any validation
    # has {}; if no point is common to the others, all have.
    lines = [{line["tokens"]: line for line in run.records if "val_loss" in line} for run in runs]
    common = max(set[float]().union(*lines).intersection(*filter(None, lines)), default=-1.0)
    points: list[Record] = [own.get(common, {}) for own in lines]
    scores = list(_compare_scores(runs, points))
    # The set and the tokenizer are told by their digests.
    values = [
        run.list_values()
        | {
            "shard set": f"{run.record.shards} ({run.record.manifest_sha256[:12]})",
            "tokenizer": run.tokenizer_sha256[:12],
        }
        for run in runs
    ]
    # A table that only some runs have is told by its other keys.
    keys = [key for key in dict.fromkeys(key for own in values for key in own) if not key.endswith(".name")]
    rows = [{"key": key, **{run.name: own.get(key) for run, own in zip(runs, values, strict=True)}} for key in keys]
    changes = [row for row in rows if any(row[run.name] != row[runs[0].name] for run in runs)]
    return {
        "verdict": [_judge(run.name, runs[0].name, scores, changes) for run in runs[1:]],
        "runs": [_measure_run(run) for run in runs],
        "scores": scores,
        "bill": [{"run": run.name, **row} for run in runs for row in run.draw_up_bill()],
        "samples": [sample for run in runs for sample in _list_samples(run)],
        "changes": changes,
        "notes": list(_list_notes(runs, points, scores)),
    }


def _list_samples(run: TrainingRun) -> list[JsonObject]:
    """Return the texts that a run has drawn, so that those of one prompt are side by side."""
    drawn: dict[str, list[JsonObject]] = {}
    for step, samples in read_samples(run.folder).items():
        for one in samples:
            row = {"run": run.name, "prompt": one["prompt"], "step": step, "text": one["text"]}
            drawn.setdefault(one["prompt"], []).append(row)
    return [row for rows in drawn.values() for row in rows]


def _measure_run(run: TrainingRun) -> JsonObject:
    seconds, speeds = run.last("seconds"), [one["tokens_per_s"] for one in run.records if "tokens_per_s" in one]
    return {
        "run": run.name,
        "folder": str(run.folder),
        "steps": run.records[-1]["step"],
        "tokens": run.last("tokens"),
        "hours": seconds and seconds / 3600,
        "dollars": run.last("usd"),
        "tokens_per_s": statistics.median(speeds) if speeds else None,
    }


def _compare_scores(runs: Sequence[TrainingRun], points: Sequence[Record]) -> Iterator[JsonObject]:
    """Yield the comparison's row for each score and run, scores in the order in which the runs have them."""
    for score in list_scores(points):
        for run, point in zip(runs, points, strict=True):
            # A score that a run does not have is empty, and so is a difference that says nothing.
            row = {"score": score, "unit": unit_of(score), "run": run.name, **read_score(point, score)}
            row |= dict.fromkeys(("difference", "difference_stderr", "why_no_difference"))
            if run is not runs[0]:
                row |= _subtract(score, (runs[0], run), (points[0], point))
            yield row | {"at_step": point.get("step"), "at_tokens": point.get("tokens")}


def _subtract(score: str, runs: tuple[TrainingRun, TrainingRun], points: tuple[Record, Record]) -> JsonObject:
    """Return the difference of a score of two runs, with its standard error, or why it has none."""
    (first, first_error), (other, error) = (read_score(point, score).values() for point in points)
    if first is None or other is None:
        return {}
    if score in VALIDATION_SCORES:
        # A validation split is read from its start: as many tokens of one set are the same ones, in the same parts.
        sets = [f"{run.record.manifest_sha256} {run.recipe.train.rows}" for run in runs]
        texts = [f"{own} {point.get('val_tokens')}" for own, point in zip(sets, points, strict=True)]
        # Bits per byte of the same text are the loss times a number that both runs share; near a loss, its perplexity
        # grows by itself times what the loss grows by.
        scale = other if score == PERPLEXITY else other / (points[1]["val_loss"] or 1.0)
        pairs = zip(*(point.get("val_loss_by_part", []) for point in points), strict=False)
        stderr = find_stderr([(b - a) * scale for a, b in pairs])
    else:
        notes = [point.get("score_notes", {}) for point in points]
        texts = [own.get(find_own(score, own), {}).get("sha256") for own in notes]
        stderr = None if None in (first_error, error) else math.hypot(first_error, error)
    if all(texts) and texts[0] != texts[1]:
        return {"why_no_difference": OTHER_TEXT}
    return {"difference": other - first, "difference_stderr": stderr}


def _judge(run: str, first: str, scores: Sequence[JsonObject], changes: Sequence[JsonObject]) -> str:
    """Return in a sentence what a comparison says of a run beside the first, by the first score that compares."""
    row = next((row for row in scores if row["run"] == run and row["difference"] is not None), None)
    if row is None:
        return f"{run} and {first} have no comparable score"
    difference, error = row["difference"], row["difference_stderr"]
    side = f"{'lower' if difference < 0 else 'higher'} by {show_score(abs(difference), error)}"
    text = f"{run}: at step {row['at_step']:,}, after {row['at_tokens']:,} tokens, {row['score']} is {side}"
    if not abs(difference) > SURE * (error or 0.0):
        return f"{text} than that of {first}: within the noise of the scored text, so no difference is shown"
    noise = "more than the noise of the scored text" if error else "the noise of the scored text is not known"
    if {change["key"] for change in changes if change[run] != change[first]} == {"train.seed"}:
        return f"{text} than that of {first}: {noise}; only the seeds differ, so this is chance"
    return f"{text} than that of {first}: {noise}; what another seed would do is not known"


def _list_notes(runs: Sequence[TrainingRun], points: list[Record], scores: list[JsonObject]) -> Iterator[str]:
    """Yield what is odd about each run of a comparison, then about comparing them."""
    for run in runs:
        yield from (f"{run.name} {oddity}" for oddity in run.describe_oddities())
    for run, point in zip(runs, points, strict=True):
        if (last := last_record(run.records, "val_loss").get("step")) != point.get("step"):
            yield (
                f"{run.name} is compared at step {point['step']:,}, and not {last:,}: the last after as many tokens in "
                "all validated runs"
                if point
                else f"{run.name} is not compared: no validation is after as many tokens in all validated runs"
            )
    if any(row["why_no_difference"] for row in scores):
        yield f"{OTHER_TEXT}: other documents, another number of tokens, or the validation split of another set"
    if len(runs) > 1 and any(row["stderr"] is not None for row in scores):
        yield (
            "±: one standard error. For validation, that of the paired differences of its parts; otherwise the runs "
            "are treated as independent."
        )


def show_tables(comparison: JsonObject) -> dict[str, list[JsonObject]]:
    """Return the tables of a comparison as people read them, by the names of their rows; lists as JSON."""
    scores = [
        {
            # Other names say their unit.
            "score": row["score"] + (f", {row['unit']}" if row["unit"] == "nats per token" else ""),
            "run": row["run"],
            "value": show_score(row["value"], row["stderr"]),
            "difference": row["why_no_difference"] or show_score(row["difference"], row["difference_stderr"], "+"),
            "at_step": row["at_step"],
        }
        for row in comparison["scores"]
    ]
    bill = show_bill(comparison["bill"])
    if len(comparison["runs"]) == 1:
        for row, unused in [*((row, "difference") for row in scores), *((row, "run") for row in bill)]:
            del row[unused]
    return {
        "scores": name_once(scores),
        "bill": bill,
        "runs": [{key: value for key, value in row.items() if key != "folder"} for row in comparison["runs"]],
        "changes": [
            {key: _show_setting(value) if isinstance(value, list | dict) else value for key, value in row.items()}
            for row in comparison["changes"]
        ],
    }


def _show_setting(value: Any) -> str:
    """Return a list or a table of a compared recipe for people; of a changed key, each value and its first step."""
    changed: list[JsonObject] = [one for one in list_of(value) if "from_step" in table_of(one)]
    texts = [f"from step {one['from_step']:,}: {json.dumps(one['value'])}" for one in changed]
    return "; ".join(texts) or json.dumps(value)


def name_once(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Return rows of a comparison's table, of which those with the same score as the row before do not name it."""
    before = [None, *(row["score"] for row in rows)]
    return [
        row | {"score": "" if row["score"] == name else row["score"]} for row, name in zip(rows, before, strict=False)
    ]


def write_comparison(
    runs: Sequence[TrainingRun],
    comparison: JsonObject,
    out: Path,
    *,
    name: str = "compare",
    shown: JsonObject | None = None,
) -> list[Path]:
    """Write a comparison as NAME.html, NAME.png and NAME.svg to a folder, and return their paths.

    Args:
        runs: the runs.
        comparison: what `compare_runs` says of them.
        out: the folder.
        name: the name of the files, and of the command that wrote them.
        shown: another `title` and `notes`, and tables that come first, `answers` by their titles.

    Raises:
        OSError: a file cannot be written.
    """
    axes, names = choose_axes(runs), [run.name for run in runs]
    figure = draw_runs(runs, list(axes.values()))
    picture = render_figure(figure, "svg")
    values: JsonObject = {
        "title": " and ".join(names if len(runs) < 4 else [names[0], f"{len(runs) - 1} more"]),
        "notes": [*comparison["verdict"], *comparison["notes"]],
        "over": list(axes),
        "picture": base64.b64encode(picture).decode("ascii"),
        "command": name,
        "answers": {},
    }
    values |= {"samples": comparison["samples"]} | show_tables(comparison) | (shown or {})
    templates = Path(__file__).parent / "templates"
    values |= read_style(TEMPLATES / "style.css", templates / "compare.css")
    page = make_render_environment(templates).get_template("compare.html.jinja").render(values)
    contents = {"html": page.encode(), "png": render_figure(figure, "png"), "svg": picture}
    files = {out / f"{name}.{suffix}": content for suffix, content in contents.items()}
    make_folder(out)
    for path, content in files.items():
        write_bytes(path, content)
    return [*files]
