"""Eval tasks of a recipe: their items are read and encoded once, then scored as often as asked.

Each score is a mean over items, and its standard error that of a mean over a random sample.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from shards.errors import InputError, plural
from shards.eval_tasks.prompts import Item
from shards.eval_tasks.read import TaskItems, read_items
from shards.terminal.program import Row
from shards.terminal.reporter import Note, Progress
from trainer.eval_config import EvalTaskConfig
from trainer.evaluation.evaluated_model import EvaluatedModel
from trainer.evaluation.item_scores import add_examples, encode_items, judge_items
from trainer.evaluation.likelihoods import Text, measure_likelihoods
from trainer.evaluation.scores import Score, estimate_ratio
from trainer.model.generate import TrainedModel

LEAST_BATCH_TOKENS = 2048
"""Tokens of a forward pass when a training step has fewer."""


@dataclass(frozen=True)
class OpenTask:
    """An eval task whose items are read and encoded."""

    config: EvalTaskConfig
    items: list[Item]
    groups: list[list[Text]]
    """The tokens of each item's choices."""
    notes: Row
    """Where the items are from, `sha256` of their texts, which tells them from others, and what is counted of them."""

    @property
    def name(self) -> str:
        """The name in the recipe."""
        return self.config.name

    def score(self, evaluated: EvaluatedModel, progress: Progress) -> dict[str, Score]:
        """Return accuracy and bits per byte; see `trainer.evaluation.evaluate.Scorer`."""
        tokens = max(evaluated.train.micro_batch * evaluated.train.seq_len, LEAST_BATCH_TOKENS)
        likelihoods = measure_likelihoods(
            evaluated.model, self.groups, precision=evaluated.precision, batch_tokens=tokens, progress=progress
        )
        accuracy, normalised, bits_per_byte = judge_items(self.name, self.items, likelihoods).T
        names = self.config.score_names
        values = [accuracy, *([normalised] if len(names) > 2 else []), bits_per_byte]
        return {name: estimate_ratio(own, np.ones(len(own))) for name, own in zip(names, values, strict=True)}


def open_eval_task(config: EvalTaskConfig, evaluated: EvaluatedModel, say: Note) -> OpenTask:
    """Read the items of an eval task, give each its few-shot examples, and encode them.

    Raises:
        InputError: a file cannot be read, holds no item or one without an answer, or has too few few-shot examples; or
            no item can be scored.
        StoreError: the Hub does not answer.
    """
    task, place = config.known or config.describe(config.name), f"eval.tasks.{config.name}"
    with _name_place(f"{place}: "):
        read = read_items(task, files=[Path(file) for file in config.files])
    items = read.items[: config.limit]
    if config.num_fewshot:
        split = config.fewshot_split or task.fewshot_split
        with _name_place(f"{place}.{'fewshot_files' if config.fewshot_files else 'fewshot_split'}: "):
            pool = read_items(task, split, files=[Path(file) for file in config.fewshot_files])
        with _name_place(f"{place}."):
            items = add_examples(items, pool.items, config.num_fewshot, config.fewshot_draw)
    # Encoded now, so that what cannot be scored is known before training starts.
    tokenizer = Tokenizer.from_buffer(evaluated.tokenizer_json)
    trained = TrainedModel(evaluated.model, tokenizer, evaluated.eos_id, 0, evaluated.bos_id)
    scored, groups, counts = encode_items(trained, items)
    texts = json.dumps([(one.contexts, one.choices, one.answer) for one in scored])
    notes: Row = {"place": read.place, "sha256": hashlib.sha256(texts.encode()).hexdigest()}
    notes |= counts | _count_held(read, scored, evaluated)
    if not scored:
        raise InputError(f"eval task {config.name}: no item can be scored: {describe_task(notes)}. Choose other items.")
    say(f"eval task {config.name}: {describe_task(notes)}")
    return OpenTask(config, scored, groups, notes)


@contextlib.contextmanager
def _name_place(place: str) -> Generator[None]:
    """Let the errors of a block begin with the key that they are about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}{error}") from error


def _count_held(read: TaskItems, scored: list[Item], evaluated: EvaluatedModel) -> Row:
    """Return how many of the scored items the training split holds, and how many its builder did not search for.

    Both are None if the set does not know, with the reason: only its builder, told of the same items, could find them
    in the text.
    """
    known = evaluated.trained_on.manifest.eval_tasks if evaluated.trained_on else []
    entry = next((one for one in known if one.items_sha256 == read.sha256), None)
    if entry is None:
        why = "the build of the training set searched for no eval task"
        if evaluated.trained_on is None:
            why = "the training set is not known"
        elif known:
            why = "the build of the training set searched for other items, or for these in another order"
        return {"held_by_training": None, "not_searched_for": None, "why_not_known": why}
    held, too_short = set(entry.held), set(entry.too_short)
    hashes = TaskItems(scored, read.place).hashes
    return {
        "held_by_training": sum(one in held for one in hashes),
        "not_searched_for": sum(one in too_short for one in hashes),
    }


def describe_task(notes: Row) -> str:
    """Return in words what an eval task counts."""
    parts = [f"{plural(notes['items'], 'item')} of {notes['place']}"]
    if (held := notes["held_by_training"]) is not None:
        scored = notes["items"] - notes["too_long"] - notes["empty"]
        parts.append(f"held by training: {held:,} of {plural(scored, 'item')}")
    elif why := notes.get("why_not_known"):
        parts.append(f"held by training: not known, because {why}")
    parts += [f"{notes[key]:,} {words}" for key, words in COUNTED.items() if notes.get(key)]
    return ", ".join(parts)


COUNTED = {
    "cut": "cut at their beginning, longer than the model's context",
    "too_long": "left out, with a choice longer than the model's context",
    "empty": "left out, with a choice of no text or no token",
    "rewritten": "whose text the tokenizer changes",
    "not_searched_for": "too short to be searched for in the training text",
}
"""What is counted of the items of an eval task, in words."""
