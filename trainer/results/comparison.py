"""Several runs compared: their last scores and the differences from the first run, what they took, what differs.

`write_comparison` writes this with the runs' curves as a page that needs no network, and the picture as PNG and SVG.
"""

from __future__ import annotations

import base64
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shards.config import list_of, table_of
from shards.report.render import TEMPLATES, make_render_environment, read_style
from shards.stores.files import atomic_open, make_folder
from shards.terminal.program import Row
from trainer.evaluation.scores import show_score
from trainer.metrics import last_record
from trainer.results.curves import TOKENIZER_UNIT, VALIDATION_SCORES, read_curve, unit_of
from trainer.results.picture import choose_axes, draw_runs, render_figure
from trainer.results.runs import TrainingRun

OTHER_TOKENIZER, OTHER_TEXT = "other tokenizer", "other text"
"""Why a score of two runs does not compare; in a table they stand in place of the difference."""
EXPLANATIONS = {
    OTHER_TOKENIZER: "nats per token cannot be compared across tokenizers; bits per byte can",
    OTHER_TEXT: "the score is of other text than that of the first run, or of another number of tokens",
}


def compare_runs(runs: Sequence[TrainingRun]) -> Row:
    """Compare runs with the first of them: return the rows of tables. Values that are not known are None.

    Returns:
        `runs`: for each run its `run` (the name), `folder`, `steps`, `tokens`, `hours`, `dollars` and `tokens_per_s`,
            the median of its steps.
        `scores`: for each score and run its `score`, `run`, `value`, `stderr`, `at_step`, the `difference` from the
            first run, its `difference_stderr` as if the two errors were independent, and `why_no_difference`.
        `changes`: for each key of the recipes that is not the same in all runs, and for the set and the tokenizer, its
            `key` and the value of each run by name; of a key that changed in a run, a list of `from_step` and `value`.
        `notes`: what is odd about the runs, and about comparing them.
    """
    scores = list(_compare_scores(runs))
    return {
        "runs": [_measure_run(run) for run in runs],
        "scores": scores,
        "changes": _list_changes(runs),
        "notes": list(_list_notes(runs, scores)),
    }


def _measure_run(run: TrainingRun) -> Row:
    seconds, speeds = run.last("seconds"), [speed for _, speed, _ in read_curve(run.records, "tokens_per_s")]
    return {
        "run": run.name,
        "folder": str(run.folder),
        "steps": run.records[-1]["step"],
        "tokens": run.last("tokens"),
        "hours": None if seconds is None else seconds / 3600,
        "dollars": run.last("usd"),
        "tokens_per_s": statistics.median(speeds) if speeds else None,
    }


def _compare_scores(runs: Sequence[TrainingRun]) -> Iterator[Row]:
    """Yield the comparison's row for each score and run, scores in the order in which the runs have them."""
    for score in dict.fromkeys(name for run in runs for name in run.scores):
        first = _last_score(runs[0], score)
        for run in runs:
            # A score that a run does not have is empty, and so is a difference that says nothing.
            found = _last_score(run, score)
            row = {"score": score, "unit": unit_of(score), "run": run.name, **found}
            row |= {"difference": None, "difference_stderr": None, "why_no_difference": None}
            if run is not runs[0] and None not in (first["value"], found["value"]):
                row["why_no_difference"] = _find_obstacle(score, runs[0], run)
                if row["why_no_difference"] is None:
                    row["difference"] = found["value"] - first["value"]
                    if None not in (first["stderr"], found["stderr"]):
                        row["difference_stderr"] = math.hypot(first["stderr"], found["stderr"])
            yield row


def _last_score(run: TrainingRun, score: str) -> Row:
    curve = read_curve(run.records, score)
    step, value, stderr = curve[-1] if curve else (None, None, None)
    return {"value": value, "stderr": stderr, "at_step": step}


def _find_obstacle(score: str, first: TrainingRun, other: TrainingRun) -> str | None:
    """Return why a score of two runs does not compare; None if it does."""
    if unit_of(score) == TOKENIZER_UNIT and first.tokenizer_sha256 != other.tokenizer_sha256:
        return OTHER_TOKENIZER
    texts = [_describe_text(score, run) for run in (first, other)]
    if score in VALIDATION_SCORES:
        # A validation split is read from its start: as many tokens of one set are the same ones.
        is_one_set = first.shard_set.manifest_sha256 == other.shard_set.manifest_sha256
        return OTHER_TEXT if is_one_set and texts[0] != texts[1] else None
    return OTHER_TEXT if all(texts) and texts[0] != texts[1] else None


def _describe_text(score: str, run: TrainingRun) -> Row:
    """Return what tells the text of a compared run's last score from other text, as far as the metrics know it."""
    if score in VALIDATION_SCORES:
        return {"val_tokens": last_record(run.records, score).get("val_tokens")}
    notes = last_record(run.records, "score_notes").get("score_notes", {})
    # The name of a score begins with that of its eval set or task.
    name = max((name for name in notes if score.startswith(f"{name}_")), key=len, default="")
    return {key: value for key, value in notes.get(name, {}).items() if key == "sha256"}


def _list_changes(runs: Sequence[TrainingRun]) -> list[Row]:
    """Return a row for each key of the compared recipes that differs, then for the set and the tokenizer."""
    values = [run.list_values() for run in runs]
    # A table that only some runs have is told by its other keys.
    keys = [key for key in dict.fromkeys(key for own in values for key in own) if not key.endswith(".name")]
    rows = [{"key": key, **{run.name: own.get(key) for run, own in zip(runs, values, strict=True)}} for key in keys]

    # The set and the tokenizer are told by their digests.
    sets = [f"{run.shard_set.path} ({run.shard_set.manifest_sha256[:12]})" for run in runs]
    tokenizers = [run.tokenizer_sha256[:12] for run in runs]
    for key, told in (("shard set", sets), ("tokenizer", tokenizers)):
        rows.append({"key": key, **{run.name: value for run, value in zip(runs, told, strict=True)}})
    return [row for row in rows if any(row[run.name] != row[runs[0].name] for run in runs)]


def _list_notes(runs: Sequence[TrainingRun], scores: list[Row]) -> Iterator[str]:
    """Yield what is odd about each run of a comparison, then about comparing them."""
    for run in runs:
        yield from (f"{run.name} {oddity}" for oddity in run.describe_oddities())
    first = runs[0].shard_set.manifest_sha256
    others = [run.name for run in runs if run.shard_set.manifest_sha256 != first]
    if others:
        trained = f"trained on another shard set than {runs[0].name}"
        yield f"{', '.join(others)}: {trained}, so val_loss and val_bits_per_byte may be of other text"
    reasons = dict.fromkeys(row["why_no_difference"] for row in scores if row["why_no_difference"])
    yield from (f"{reason}: {EXPLANATIONS[reason]}" for reason in reasons)
    if any(row["stderr"] is not None for row in scores):
        yield "±: one standard error; of a difference, as if the errors of both runs were independent"


def show_tables(comparison: Row) -> dict[str, list[Row]]:
    """Return the tables of a comparison as people read them, by the names of their rows; lists as JSON."""
    scores: list[Row] = []
    for row in comparison["scores"]:
        nats = f", {row['unit']}" if row["unit"] == "nats per token" else ""  # other names say their unit
        difference = show_score(row["difference"], row["difference_stderr"], "+")
        shown = {"score": row["score"] + nats, "run": row["run"], "value": show_score(row["value"], row["stderr"])}
        scores.append(shown | {"difference": row["why_no_difference"] or difference, "at_step": row["at_step"]})
    return {
        "scores": name_once(scores, "score"),
        "runs": [{key: value for key, value in row.items() if key != "folder"} for row in comparison["runs"]],
        "changes": [
            {key: _show_setting(value) if isinstance(value, list | dict) else value for key, value in row.items()}
            for row in comparison["changes"]
        ],
    }


def _show_setting(value: Any) -> str:
    """Return a list or a table of a compared recipe for people; of a changed key, each value and its first step."""
    changed: list[Row] = [one for one in list_of(value) if "from_step" in table_of(one)]
    texts = [f"from step {one['from_step']:,}: {json.dumps(one['value'])}" for one in changed]
    return "; ".join(texts) or json.dumps(value)


def name_once(rows: Sequence[Row], key: str) -> list[Row]:
    """Return rows of a comparison's table, of which those with the same name as the row before have an empty one."""
    before = [None, *(row[key] for row in rows)]
    return [row | {key: "" if row[key] == name else row[key]} for row, name in zip(rows, before, strict=False)]


def write_comparison(
    runs: Sequence[TrainingRun], comparison: Row, out: Path, *, name: str = "compare", shown: Row | None = None
) -> list[Path]:
    """Write a comparison as NAME.html, NAME.png and NAME.svg to a folder, and return their paths.

    Args:
        runs: the runs.
        comparison: what `compare_runs` says of them.
        out: the folder.
        name: the name of the files, and of the command that wrote them.
        shown: another `title` and `notes`, and tables that come first, `answers` by their titles.

    Raises:
        InputError: no run has a number to draw.
        OSError: a file cannot be written.
    """
    axes, names = choose_axes(runs), [run.name for run in runs]
    figure = draw_runs(runs, list(axes.values()))
    picture = render_figure(figure, "svg")
    values: Row = {
        "title": " and ".join(names if len(runs) < 4 else [names[0], f"{len(runs) - 1} more"]),
        "notes": comparison["notes"],
        "over": list(axes),
        "picture": base64.b64encode(picture).decode("ascii"),
        "command": name,
        "answers": {},
    }
    values |= show_tables(comparison) | (shown or {})
    templates = Path(__file__).parent / "templates"
    values |= read_style(TEMPLATES / "style.css", templates / "compare.css")
    page = make_render_environment(templates).get_template("compare.html.jinja").render(values)
    contents = {"html": page.encode(), "png": render_figure(figure, "png"), "svg": picture}
    make_folder(out)
    for suffix, content in contents.items():
        with atomic_open(out / f"{name}.{suffix}") as file:
            file.write(content)
    return [out / f"{name}.{suffix}" for suffix in contents]
