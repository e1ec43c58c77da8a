"""Scoring the items of eval tasks: accuracy, accuracy normalised by bytes, bits per byte of the right answer.

Texts are cut into tokens as lm-evaluation-harness cuts them: context and choice are encoded together, and split after
as many tokens as the context has alone; spaces at the end of a context go to the choice. An item that is longer than
the model's context loses tokens at its beginning, as there; it is counted.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count, islice
from typing import Literal

import numpy as np
import numpy.typing as npt

from shards.errors import InputError, plural
from shards.eval_tasks.prompts import DELIMITER, Item
from trainer.evaluation.likelihoods import Text
from trainer.evaluation.scores import check_finite
from trainer.model.generate import TrainedModel

FEWSHOT_DELIMITER = "\n\n"
"""The text after each few-shot example. Source: lm-evaluation-harness."""

Draw = Literal["fixed", "first"]


def add_examples(items: Sequence[Item], pool: Sequence[Item], number: int, draw: Draw) -> list[Item]:
    """Return items whose contexts begin with few-shot examples. An item is never its own example.

    Args:
        items: the items.
        pool: the items to take examples from.
        number: how many examples each item gets.
        draw: `first`: the first of the pool, for every item, as the sampler `first_n` of lm-evaluation-harness.
            `fixed`: others for each item, which depend on the item and the pool alone.

    Raises:
        InputError: the pool has too few items.
    """
    if number == 0:
        return list(items)
    found: list[Item] = []
    for item in items:
        others = (pool[place] for place in _draw_places(item, len(pool), draw) if pool[place] != item)
        examples = list(islice(others, number))
        if len(examples) < number:
            raise InputError(
                f"num_fewshot = {number}: found {plural(len(examples), 'item')} to take examples from, the scored one "
                "left out. Lower num_fewshot, or name another split or more files."
            )
        before = "".join(example.example + FEWSHOT_DELIMITER for example in examples)
        found.append(item._replace(contexts=tuple(before + context for context in item.contexts)))
    return found


def _draw_places(item: Item, size: int, draw: Draw) -> Iterator[int]:
    """Yield the places of a pool, each once, in the order in which an item takes examples from it."""
    if draw == "first":
        yield from range(size)
        return
    seen: set[int] = set()
    for number in count():
        if len(seen) == size:
            return
        digest = blake2b(f"{number} {item.text}".encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") % size
        if place not in seen:
            seen.add(place)
            yield place


def encode_items(trained: TrainedModel, items: Sequence[Item]) -> tuple[list[Item], list[list[Text]], dict[str, int]]:
    """Encode items; leave out what cannot be scored, and cut what is longer than the model's context.

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
    for item, texts, rewritten in _encode(trained, items):
        if any(text.scored <= 0 for text in texts) or "" in item.choices:
            notes["empty"] += 1
        elif any(text.scored > context for text in texts):
            notes["too_long"] += 1
        else:
            # The last token is only predicted, so that a text may have one more than the context.
            notes["cut"] += any(len(text.ids) > context + 1 for text in texts)
            notes["rewritten"] += rewritten
            scored.append(item)
            groups.append([text._replace(ids=text.ids[-(context + 1) :]) for text in texts])
    return scored, groups, notes


def judge_items(
    name: str, items: Sequence[Item], likelihoods: Sequence[npt.NDArray[np.float64]]
) -> npt.NDArray[np.float64]:
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


def _encode(trained: TrainedModel, items: Sequence[Item]) -> Iterator[tuple[Item, list[Text], bool]]:
    """Yield each item with the tokens of its choices, and whether the tokenizer rewrites the right one."""
    for item in items:
        # Spaces at the end of a context belong to the first token of the choice.
        contexts = [context.rstrip() for context in item.contexts]
        wholes = [whole + DELIMITER + choice for whole, choice in zip(item.contexts, item.choices, strict=True)]
        encoded = trained.encode([*dict.fromkeys(contexts), *wholes])
        sizes = {context: len(own) for context, own in zip(dict.fromkeys(contexts), encoded, strict=False)}
        ids = encoded[len(sizes) :]
        texts = [
            Text([trained.begin_id, *own], len(own) - sizes[context])
            for own, context in zip(ids, contexts, strict=True)
        ]
        decoded = trained.tokenizer.decode(ids[item.answer], skip_special_tokens=False)
        yield item, texts, decoded != wholes[item.answer]
