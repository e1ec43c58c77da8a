"""Scores of a model with their standard errors: as metrics.jsonl has them, and as people read them."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shards.errors import RunError, plural
from shards.format.arrays import Float64s
from shards.terminal.display import JsonObject

PERPLEXITY = "val_perplexity"
VALIDATION_SCORES = ("val_loss", PERPLEXITY, "val_bits_per_byte")
"""Scores of the validation split, which are keys of a validation line by themselves."""
Score = dict[str, Any]
"""A number that says how good a model is on an eval set or an eval task: its `value`, and its standard error `stderr`,
which is None if it is not known, as of a single document."""


COUNTED = {
    "held_by_training": "in the training text",
    "not_searched_for": "too short to be searched for in the training text",
    "past_max_tokens": "not scored, as max_tokens is reached",
    "cut": "cut at their beginning, longer than the model's context",
    "too_long": "left out, with a choice longer than the model's context",
    "empty": "left out, with a choice that has no text or no token",
    "rewritten": "whose text the tokenizer changes",
    "unread_bytes": "stored bytes not read, as max_tokens is reached",
}
"""What is counted of the documents of an eval set, or the items of an eval task, in words."""


def describe_counts(notes: JsonObject) -> str:
    """Return in words what was counted of an eval set or an eval task, by the notes of its scores."""
    if "place" in notes:
        parts = [f"{plural(notes['items'], 'item')} of {notes['place']}"]
    else:
        size = f"{plural(notes['bytes'], 'byte')}, {plural(notes['tokens'], 'token')}"
        parts = [f"{plural(notes['documents'], 'document')} scored ({size})"]
    if notes["held_by_training"] is None:
        parts.append("not known whether they are in the training text")
    parts += [f"{notes[key]:,} {words}" for key, words in COUNTED.items() if notes.get(key)]
    parts += [f"{count:,} dropped: {reason}" for reason, count in notes.get("dropped", {}).items()]
    return ", ".join(parts)


def read_score(line: JsonObject, name: str) -> Score:
    """Return a score, or another number, of a line of the metrics; its value is None if the line does not have it."""
    scores: dict[str, Score] = line.get("scores", {})
    if name in scores:
        return scores[name]
    value, loss = line.get(name), "val_loss" if name == PERPLEXITY else name
    stderr = find_stderr(line.get(f"{loss}_by_part", []))
    return {"value": value, "stderr": stderr and value and (stderr * value if name == PERPLEXITY else stderr)}


def find_perplexity(loss: float) -> float | None:
    """Return the perplexity of a loss in nats per token; None if it is too large to say."""
    return math.exp(loss) if loss < math.log(sys.float_info.max) else None


def list_scores(records: Sequence[JsonObject]) -> list[str]:
    """Return the names of the scores in a run's metrics: of the validation split, then of its eval sets and tasks."""
    own = [key for key in VALIDATION_SCORES if any(record.get(key) is not None for record in records)]
    return [*own, *dict.fromkeys(name for record in records for name in record.get("scores", {}))]


def unit_of(score: str) -> str:
    """Return the unit of a score, by its name: nats per token, per token (perplexity), bits per byte, or accuracy."""
    if score == PERPLEXITY:
        return "per token"
    if score in ("loss", "val_loss"):
        return "nats per token"
    return "bits per byte" if score.endswith(("_bpb", "_bits_per_byte")) else "accuracy"


def show_score(value: float | None, stderr: float | None, sign: str = "") -> str | None:
    """Return a score, or with the sign `+` a difference of scores, as people read it; None without a value."""
    if value is None:
        return None
    return f"{value:{sign}.4f}" + ("" if stderr is None else f" ± {stderr:.4f}")


def find_own(score: str, names: Iterable[str]) -> str:
    """Return which of these eval sets and tasks a score belongs to; "" if none does.

    The name of a score begins with that of its eval set or task, and may begin with that of another one.
    """
    return max((name for name in names if score.startswith(f"{name}_")), key=len, default="")


def find_stderr(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean of independent values, such as parts of a score; None of less than two."""
    with np.errstate(all="ignore"):  # a loss may be anything
        return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None


def estimate_ratio(parts: Float64s, wholes: Float64s) -> Score:
    """Return as a score the sum of some parts over that of their wholes, with its standard error over the items.

    The items, such as documents, are taken for a random sample, each with a part (bits) and a whole (bytes). A long
    document has more weight than a short one, and its tokens are not independent: only documents are. The standard
    error is that of the ratio estimator by linearisation, `sqrt(n / (n - 1) * sum((part - ratio * whole) ** 2)) /
    sum(wholes)`. Source: W. G. Cochran, Sampling Techniques, 3rd edition, 1977, section 6.4, without the correction for
    a finite population.

    Args:
        parts: float64 `(items,)`.
        wholes: float64 `(items,)`, of the same items; their sum is above 0.
    """
    items, whole = len(parts), float(wholes.sum())
    ratio = float(parts.sum()) / whole
    if items < 2:
        return {"value": ratio, "stderr": None}
    squares = float(((parts - ratio * wholes) ** 2).sum())
    return {"value": ratio, "stderr": math.sqrt(items / (items - 1) * squares) / whole}


def check_finite(name: str, values: Mapping[str, float]) -> None:
    """Check the numbers that a score is made of.

    Args:
        name: the name of the score.
        values: the number of each item, by the words that name the item: its file and row, or its question.

    Raises:
        RunError: a number is not finite.
    """
    for item, value in values.items():
        if not math.isfinite(value):
            raise RunError(
                f"{name}: is {value} for {item}; expected a finite number. The weights give no usable logits there: "
                "go back to an earlier checkpoint, or lower optimizer.lr."
            )
