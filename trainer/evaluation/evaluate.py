"""The scores of a recipe's eval sets and eval tasks: opened once, before training starts, then taken as often as asked.

Whoever scores is opened by `open_scorers`, which refuses what cannot be scored, and asked by `evaluate_scores`. Every
rank asks, takes its part of the work, and has the same scores.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from shards.terminal.display import JsonObject
from shards.terminal.reporter import Note, Progress
from trainer.evaluation.eval_sets import EvalSet, describe_notes, open_eval_set
from trainer.evaluation.eval_tasks import OpenTask, describe_task, open_eval_task
from trainer.evaluation.scores import Score
from trainer.evaluation.validation import EvaluatedModel
from trainer.recipe.eval_config import EvalConfig

Scorer = EvalSet | OpenTask
"""An eval set or an eval task, ready to be scored. It has

- `name`: that in the recipe;
- `notes`: `sha256` of what is scored, which tells it from other text, and what was counted;
- `score(evaluated, progress)`: returns the scores of the model, with its weights of now.
  Every rank calls it, the model in evaluation mode, without gradients. A number that is not finite is a `RunError`.
"""


def open_scorers(config: EvalConfig, evaluated: EvaluatedModel, say: Note) -> list[Scorer]:
    """Open the eval sets and eval tasks of a recipe.

    Raises:
        InputError: one cannot be scored; the message names it.
    """
    sets = [open_eval_set(one, evaluated, say) for one in config.sets]
    return [*sets, *(open_eval_task(one, evaluated, say) for one in config.tasks)]


def evaluate_scores(
    scorers: Sequence[Scorer],
    evaluated: EvaluatedModel,
    show: Callable[[str], contextlib.AbstractContextManager[Progress]],
) -> JsonObject:
    """Score a model. Every rank calls it, and has the same scores.

    Args:
        scorers: of `open_scorers`.
        evaluated: the model, in evaluation mode.
        show: called with the name of each; its context shows the progress.

    Returns:
        The fields of a validation line in metrics.jsonl, none without scorers: the `scores` by name, and `score_notes`
        by eval set or task: what was counted, such as documents that were left out.

    Raises:
        RunError: a number of a score is not finite.
    """
    scores: dict[str, Score] = {}
    with torch.no_grad():
        for scorer in scorers:
            with show(scorer.name) as progress:
                scores |= scorer.score(evaluated, progress)
    return {"scores": scores, "score_notes": {one.name: one.notes for one in scorers}} if scores else {}


def describe_counts(notes: dict[str, JsonObject]) -> list[str]:
    """Return a line for each eval set and eval task, by the notes of its scores: what was counted of it."""
    return [f"{name}: {(describe_task if 'place' in own else describe_notes)(own)}" for name, own in notes.items()]
