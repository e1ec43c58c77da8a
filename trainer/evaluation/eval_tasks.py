"""Eval tasks of a recipe: their items are read and encoded once, then scored as often as asked.

The scores are accuracy, accuracy normalised by bytes, and bits per byte of the right answer. Each is a mean over items,
and its standard error that of a mean over a random sample.

Texts are cut into tokens as lm-evaluation-harness cuts them: context and choice are encoded together, and split after
as many tokens as the context has alone; spaces at the end of a context go to the choice. An item that is longer than
the model's context loses tokens at its beginning, as there; it is counted.
"""

# pyright: reportUnknownMemberType=false
import contextlib
import hashlib
import itertools
import json
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from shards.errors import InputError, plural
from shards.eval_tasks.known import DELIMITER, Item
from shards.eval_tasks.read import TaskItems, read_items
from shards.format.arrays import Float64s
from shards.terminal.display import JsonObject
from shards.terminal.reporter import Note, Progress, no_progress
from trainer.device import add_over_ranks, score_eagerly, share_batches
from trainer.evaluation.scores import Score, check_finite, describe_counts, estimate_ratio
from trainer.model.generate import TrainedModel
from trainer.recipe.eval_config import EvalTaskConfig

LEAST_BATCH_TOKENS = 2048
"""Tokens of a forward pass when a training step has fewer."""


class Text(NamedTuple):
    """A text whose end is scored."""

    ids: list[int]
    """Its tokens, from the one that begins a document."""
    scored: int
    """How many of the last ones are scored; at least one is not."""


@dataclass(frozen=True)
class OpenTask:
    """An eval task whose items are read and encoded."""

    config: EvalTaskConfig
    items: list[Item]
    groups: list[list[Text]]
    """The tokens of each item's choices."""
    notes: JsonObject
    """Where the items are from, `sha256` of their texts, which tells them from others, and what is counted of them."""

    @property
    def name(self) -> str:
        """Its name in the recipe."""
        return self.config.name

    def score(self, trained: TrainedModel, progress: Progress) -> dict[str, Score]:
        """Return its accuracy and bits per byte; see `trainer.evaluation.evaluate.Scorer`."""
        likelihoods = measure_likelihoods(trained, self.groups, progress)
        accuracy, normalised, bits_per_byte = judge_items(self.name, self.items, likelihoods).T
        names = self.config.score_names
        values = [accuracy, *([normalised] if len(names) > 2 else []), bits_per_byte]
        return {name: estimate_ratio(own, np.ones(len(own))) for name, own in zip(names, values, strict=True)}


def open_eval_task(config: EvalTaskConfig, trained: TrainedModel, say: Note) -> OpenTask:
    """Read the items of an eval task, give each its few-shot examples, and encode them.

    Raises:
        InputError: a file cannot be read, holds no item or one without an answer, or has too few few-shot examples; or
            no item can be scored.
        StoreError: the Hub does not answer.
    """
    task, place = config.known or config.describe(), f"eval.tasks.{config.name}"
    with _name_place(f"{place}: "):
        read = read_items(task, files=[Path(file) for file in config.files])
    items = read.items[: config.limit]
    if config.num_fewshot:
        with _name_place(f"{place}.fewshot_files: "):
            pool = read_items(task, task.fewshot_file, files=[Path(file) for file in config.fewshot_files])
        with _name_place(f"{place}."):
            items = add_examples(items, pool.items, config.num_fewshot)
    # Encoded now, so that what cannot be scored is known before training starts.
    scored, groups, counts = encode_items(trained, items)
    texts = json.dumps([(one.contexts, one.choices, one.answer) for one in scored])
    notes: JsonObject = {"place": read.place, "sha256": hashlib.sha256(texts.encode()).hexdigest()}
    notes |= counts | _count_held(read, scored, trained)
    if not scored:
        raise InputError(
            f"eval task {config.name}: no item can be scored: {describe_counts(notes)}. Choose other items."
        )
    say(f"eval task {config.name}: {describe_counts(notes)}")
    return OpenTask(config, scored, groups, notes)


@contextlib.contextmanager
def _name_place(place: str) -> Generator[None]:
    """Let the errors of a block begin with the eval task's key that they are about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}{error}") from error


def _count_held(read: TaskItems, scored: list[Item], trained: TrainedModel) -> JsonObject:
    """Return how many of an eval task's items the training split holds, and how many its builder did not search for.

    Both are None if the set does not know: only its builder, told of the same items, could find them in the text.
    """
    known = trained.trained_on.manifest.eval_tasks if trained.trained_on else []
    entry = next((one for one in known if one.items_sha256 == read.sha256), None)
    if entry is None:
        return {"held_by_training": None, "not_searched_for": None}
    held, too_short = set(entry.held), set(entry.too_short)
    hashes = TaskItems(scored, read.place).hashes
    return {
        "held_by_training": sum(one in held for one in hashes),
        "not_searched_for": sum(one in too_short for one in hashes),
    }


FEWSHOT_DELIMITER = "\n\n"
"""The text after each few-shot example. Source: lm-evaluation-harness."""


def add_examples(items: Sequence[Item], pool: Sequence[Item], number: int) -> list[Item]:
    """Return an eval task's items whose contexts begin with few-shot examples. None is its own example.

    Args:
        items: the items.
        pool: the items to take examples from.
        number: how many examples each item gets: the first of the pool, as by the sampler `first_n` of
            lm-evaluation-harness.

    Raises:
        InputError: the pool has too few items.
    """
    found: list[Item] = []
    for item in items:
        others = (other for other in pool if other.before == item.before and other != item)
        examples = list(itertools.islice(others, number))
        if len(examples) < number:
            raise InputError(
                f"num_fewshot = {number}: found {plural(len(examples), 'item')} to take examples from, the scored one "
                "left out. Lower num_fewshot, or give more files."
            )
        before = item.before + "".join(example.example + FEWSHOT_DELIMITER for example in examples)
        contexts = (before + context.removeprefix(item.before) for context in item.contexts)
        found.append(item._replace(contexts=tuple(contexts)))
    return found


def encode_items(trained: TrainedModel, items: Sequence[Item]) -> tuple[list[Item], list[list[Text]], dict[str, int]]:
    """Encode an eval task's items; leave out what cannot be scored, and cut what is longer than the model's context.

    Args:
        trained: the model and its tokenizer; each text begins as a document of the model's training does.
        items: the items, with their few-shot examples.

    Returns:
        The items that can be scored; the tokens of each one's choices; and how many `items` there are, and how many of
        them are `cut` at their beginning, left out because a choice is `too_long` or has no text or no token (`empty`),
        `rewritten` by the tokenizer.
    """
    scored: list[Item] = []
    groups: list[list[Text]] = []
    notes: dict[str, int] = {"items": len(items)}
    notes |= dict.fromkeys(("cut", "too_long", "empty", "rewritten"), 0)
    context = trained.model.config.max_position_embeddings
    for item in items:
        # Spaces at the end of a context belong to the first token of the choice.
        contexts = [context.rstrip() for context in item.contexts]
        wholes = [whole + DELIMITER + choice for whole, choice in zip(item.contexts, item.choices, strict=True)]
        begun, ids = [*dict.fromkeys(contexts)], trained.encode(wholes)
        sizes = dict(zip(begun, map(len, trained.encode(begun)), strict=True))
        texts = [
            Text([trained.begin_id, *own], len(own) - sizes[context])
            for own, context in zip(ids, contexts, strict=True)
        ]
        if any(text.scored <= 0 for text in texts) or "" in item.choices:
            notes["empty"] += 1
        elif any(text.scored > context for text in texts):
            notes["too_long"] += 1
        else:
            # The last token is only predicted, so that a text may have one more than the context.
            notes["cut"] += any(len(text.ids) > context + 1 for text in texts)
            decoded = trained.tokenizer.decode(ids[item.answer], skip_special_tokens=False)
            notes["rewritten"] += decoded != wholes[item.answer]
            scored.append(item)
            groups.append([text._replace(ids=text.ids[-(context + 1) :]) for text in texts])
    return scored, groups, notes


def judge_items(name: str, items: Sequence[Item], likelihoods: Sequence[Float64s]) -> Float64s:
    """Judge each item of an eval task by the likelihoods of its choices.

    Args:
        name: the name of the eval task, for messages.
        items: the items.
        likelihoods: of `measure_likelihoods`, one array for each item.

    Returns:
        float64 `(items, 3)`: 1 where the likeliest choice is right, else 0; the same for the choice with the most
        likelihood for each of its bytes; and the bits per byte of the right choice, without the delimiter before it. A
        single choice is right where each of its tokens is the likeliest.

    Raises:
        RunError: a log-likelihood is not finite.
    """
    check_finite(name, {item.text: nats.sum() for item, (nats, _) in zip(items, likelihoods, strict=True)})
    rows = np.empty((len(items), 3))
    for row, item, (nats, greedy) in zip(rows, items, likelihoods, strict=True):
        sizes = np.array([len(choice.encode()) for choice in item.choices])
        right = item.answer
        is_best = [greedy[0], greedy[0]]
        if len(item.choices) > 1:
            is_best = [nats.argmax() == right, (nats / sizes).argmax() == right]
        row[:] = [*is_best, -nats[right] / math.log(2) / sizes[right]]
    return rows


@torch.no_grad()
def measure_likelihoods(
    trained: TrainedModel, groups: Sequence[Sequence[Text]], progress: Progress = no_progress
) -> list[Float64s]:
    """Return the log-likelihoods of each group's texts. Under torchrun every rank calls it, and gets all of them.

    Texts of about the same length go through the model together.

    Args:
        trained: the model, in evaluation mode.
        groups: the texts of each item. No text has more tokens than the model's context and one more.
        progress: told how many groups are done, and of how many.

    Returns:
        For each group float64 `(2, texts)`: the log-likelihood of the scored tokens of each text in nats, and 1 where
        each of these tokens was the likeliest one, else 0.
    """
    texts, device = [text for group in groups for text in group], trained.device
    found = torch.zeros(2, len(texts), dtype=torch.float64)
    order = sorted(range(len(texts)), key=lambda place: -len(texts[place].ids))
    sizes = [len(texts[place].ids) for place in order]
    batch_tokens = max(trained.train.micro_batch * trained.train.seq_len, LEAST_BATCH_TOKENS)
    for part, counts in share_batches(sizes, batch_tokens, len(groups), progress):
        # Attention is causal, so the padding at the end changes nothing before it.
        batch = order[part]
        ids = torch.zeros(len(batch), sizes[part][0] - 1, dtype=torch.int64)
        targets = torch.full_like(ids, -1)
        for row, (own, scored) in enumerate(texts[place] for place in batch):
            length = len(own) - 1
            ids[row, :length] = torch.tensor(own[:-1])
            targets[row, length - scored : length] = torch.tensor(own[-scored:])
        chosen = targets >= 0
        with score_eagerly(trained.train.precision, device):
            logits = trained.model(ids.to(device), chosen=chosen.to(device))
        wanted = targets[chosen].to(device)
        nats = (logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(1)).double().cpu()
        misses = (logits.argmax(1) != wanted).double().cpu()

        # Add up the tokens of each text.
        sums = torch.zeros(2, len(batch), dtype=torch.float64)
        sums.index_add_(1, chosen.nonzero()[:, 0], torch.stack((nats, misses)))
        if counts:
            found[:, batch] = torch.stack((sums[0], (sums[1] == 0).double()))
    found = found.to(device)
    add_over_ranks(found)
    edges = np.cumsum([0, *map(len, groups)]).tolist()
    values = found.cpu().numpy()
    return [values[:, start:stop] for start, stop in itertools.pairwise(edges)]
