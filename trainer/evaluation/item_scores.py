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
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from shards.errors import InputError, plural
from shards.eval_tasks.prompts import DELIMITER, Item
from trainer.evaluation.likelihoods import Likelihoods, Report, Text, measure_likelihoods
from trainer.evaluation.scores import check_finite
from trainer.model.decoder import LanguageModel
from trainer.model.generate import TrainedModel

FEWSHOT_DELIMITER = "\n\n"
"""The text after each few-shot example. Source: lm-evaluation-harness."""

Draw = Literal["fixed", "first"]


class ItemScores(NamedTuple):
    """The scores of the items of an eval task, one row for each item that is not left out."""

    accuracy: npt.NDArray[np.float64]
    """1 where the likeliest choice is right, else 0; for a single choice, where each of its tokens is the likeliest."""
    accuracy_norm: npt.NDArray[np.float64]
    """The same for the choice with the most likelihood for each of its bytes."""
    bits_per_byte: npt.NDArray[np.float64]
    """Of the right choice, without the delimiter before it."""
    likelihoods: list[Likelihoods]
    """Of the choices, without those of items that are left out."""
    notes: dict[str, int]
    """Items, and how many of them are not as they should be: `cut` at their beginning, left out because a choice is
    `too_long` or has no text or no token (`empty`), `rewritten` by the tokenizer."""


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


class EncodedItems(NamedTuple):
    """The items of an eval task as the tokens of a model."""

    items: list[Item]
    """Those that can be scored."""
    groups: list[list[Text]]
    """The tokens of each item's choices."""
    notes: dict[str, int]
    """As those of `ItemScores`."""


def encode_items(trained: TrainedModel, items: Sequence[Item]) -> EncodedItems:
    """Encode items; leave out what cannot be scored, and cut what is longer than the model's context.

    Args:
        trained: the model and its tokenizer; each text begins as a document of the model's training does.
        items: the items, with their few-shot examples.
    """
    notes: dict[str, int] = {"items": len(items)}
    notes |= dict.fromkeys(("cut", "too_long", "empty", "rewritten"), 0)
    encoded = EncodedItems([], [], notes)
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
            encoded.items.append(item)
            encoded.groups.append([text._replace(ids=text.ids[-(context + 1) :]) for text in texts])
    return encoded


def score_items(
    model: LanguageModel,
    encoded: EncodedItems,
    *,
    precision: Literal["fp32", "bf16"],
    batch_tokens: int,
    name: str = "eval task",
    report: Report = lambda done, total: None,
) -> ItemScores:
    """Score items. Under torchrun every rank calls it, and gets all scores.

    Args:
        model: the model that the items are encoded for.
        encoded: the items.
        precision: arithmetic of the forward pass.
        batch_tokens: tokens in one forward pass.
        name: the name of the eval task, for messages.
        report: told how many items are done, and of how many.

    Raises:
        RunError: a log-likelihood is not finite.
    """
    items, groups, notes = encoded
    likelihoods = measure_likelihoods(model, groups, precision=precision, batch_tokens=batch_tokens, report=report)
    check_finite(name, {item.text: own.nats.sum() for item, own in zip(items, likelihoods, strict=True)})

    # Judge each item: the likeliest choice, the likeliest by its bytes, and the cost of the right one.
    judged = [_judge(item, own) for item, own in zip(items, likelihoods, strict=True)]
    rows = np.array(judged, np.float64).reshape(-1, 3)
    return ItemScores(rows[:, 0], rows[:, 1], rows[:, 2], likelihoods, notes)


def _judge(item: Item, found: Likelihoods) -> tuple[float, float, float]:
    sizes = np.array([len(choice.encode()) for choice in item.choices])
    right = item.answer
    bits_per_byte = -found.nats[right] / math.log(2) / sizes[right]
    if len(item.choices) == 1:
        return float(found.greedy[0]), float(found.greedy[0]), bits_per_byte
    return (
        float(found.nats.argmax() == right),
        float((found.nats / sizes).argmax() == right),
        bits_per_byte,
    )


def _encode(trained: TrainedModel, items: Sequence[Item]) -> Iterator[tuple[Item, list[Text], bool]]:
    """Yield each item with the tokens of its choices, and whether the tokenizer rewrites the right one."""
    tokenizer = trained.tokenizer
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    begin = trained.eos_id if trained.bos_id is None else trained.bos_id
    for item in items:
        # Spaces at the end of a context belong to the first token of the choice.
        contexts = [context.rstrip() for context in item.contexts]
        wholes = [whole + DELIMITER + choice for whole, choice in zip(item.contexts, item.choices, strict=True)]
        encoded = tokenizer.encode_batch([*dict.fromkeys(contexts), *wholes], add_special_tokens=False)
        sizes = {context: len(own.ids) for context, own in zip(dict.fromkeys(contexts), encoded, strict=False)}
        ids = [own.ids for own in encoded[len(sizes) :]]
        texts = [Text([begin, *own], len(own) - sizes[context]) for own, context in zip(ids, contexts, strict=True)]
        decoded = tokenizer.decode(ids[item.answer], skip_special_tokens=False)
        yield item, texts, decoded != wholes[item.answer]
