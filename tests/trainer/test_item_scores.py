"""Items of eval tasks: scores against one text at a time, few-shot examples, and what cannot be scored."""

import math
import random

import numpy as np
import pytest
import torch

from shards.eval_tasks.known import Item
from tests.trainer.conftest import TEXTS, make_config, train_tokenizer
from trainer.evaluation.eval_tasks import add_examples, encode_items, judge_items, measure_likelihoods
from trainer.model.decoder import build_model
from trainer.model.generate import TrainedModel
from trainer.recipe import TrainConfig

CONTEXT = 48
EOS = 318


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def trained(request) -> TrainedModel:
    """A model whose likelihoods differ much between tokens, as an untrained one's would not."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "max_position_embeddings": CONTEXT}
    config = make_config(request.param, **sizes, tie_word_embeddings=True)
    model = build_model(config, 320, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(8 if "embed" in name else 4)
    train = TrainConfig(seq_len=CONTEXT, global_batch=4, micro_batch=4, steps=1, precision="fp32")
    return TrainedModel(model, train, train_tokenizer().to_str().encode(), EOS, None, 1)


def make_item(rng: random.Random, choices: int = 4) -> Item:
    words = TEXTS["prose"].split()
    picked = [" ".join(rng.choices(words, k=rng.randint(1, 5))) for _ in range(choices)]
    context = "Question: " + " ".join(rng.choices(words, k=rng.randint(1, 4))) + "\nAnswer:"
    return Item((context,) * choices, tuple(picked), rng.randrange(choices), f"{context} {picked[0]}")


def score(trained: TrainedModel, items: list[Item]) -> tuple[np.ndarray, list[np.ndarray], dict[str, int]]:
    """Return the judgements of items, the likelihoods of their choices, and what is counted of them."""
    scored, groups, notes = encode_items(trained, items)
    likelihoods = measure_likelihoods(trained, groups)
    return judge_items("eval task", scored, likelihoods), likelihoods, notes


def log_likelihood(trained: TrainedModel, context: str, continuation: str) -> tuple[float, bool]:
    """Score one text, one position at a time."""
    encode = trained.tokenizer.encode
    start = 1 + len(encode(context.rstrip(), add_special_tokens=False).ids)
    ids = [EOS, *encode(context + continuation, add_special_tokens=False).ids]
    nats, greedy = 0.0, True
    first = max(0, len(ids) - CONTEXT - 1)
    for place in range(start, len(ids)):
        with torch.no_grad():
            logits = trained.model(torch.tensor([ids[first:place]]))[0, -1].double()
        nats += float(logits.log_softmax(0)[ids[place]])
        greedy &= int(logits.argmax()) == ids[place]
    return nats, greedy


def test_likelihoods_are_those_of_each_text_alone(trained):
    rng = random.Random(1)
    items = [make_item(rng, choices) for choices in (2, 4, 5, 1, 3) for _ in range(4)]
    # The choices are in the contexts, and contexts end in spaces.
    items.append(Item(("the mill turns", "the river turns"), ("a stream", "a stream"), 1, ""))
    items.append(Item(("grind the  \n", "grind the  \n"), ("grain", "press"), 0, ""))
    items.append(Item(("", ""), ("mill turns", "turns"), 0, ""))
    found, likelihoods, notes = score(trained, items)
    accuracy, accuracy_norm, bits_per_byte = found.T
    assert notes["items"] == len(items) == len(likelihoods)
    for place, (item, own) in enumerate(zip(items, likelihoods, strict=True)):
        alone = [
            log_likelihood(trained, context, f" {choice}") for context, choice in zip(item[0], item[1], strict=True)
        ]
        nats = np.array([one for one, _ in alone])
        np.testing.assert_allclose(own[0], nats, atol=1e-4)
        assert own[1].tolist() == [greedy for _, greedy in alone]
        sizes = np.array([len(choice.encode()) for choice in item.choices])
        assert bits_per_byte[place] == pytest.approx(-nats[item.answer] / math.log(2) / sizes[item.answer], 1e-4)
        if len(item.choices) > 1:
            assert accuracy[place] == (nats.argmax() == item.answer)
            assert accuracy_norm[place] == ((nats / sizes).argmax() == item.answer)
    assert 0 < accuracy.mean() < 1
    assert (accuracy != accuracy_norm).any()


def test_long_items_are_cut_at_their_beginning_or_left_out_and_counted(trained):
    short, long = make_item(random.Random(3)), " ".join(["mill"] * 60)
    cut = Item((f"{long} turns",) * 2, ("a stream", "grain"), 0, "")
    too_long = Item(("the",) * 2, ("mill", long), 0, "")
    empty = Item(("the",) * 2, ("mill", ""), 0, "")
    found, likelihoods, notes = score(trained, [cut, too_long, short, empty])
    assert notes == {"items": 4, "cut": 1, "too_long": 1, "empty": 1, "rewritten": 0}
    assert len(found) == 2
    alone = [log_likelihood(trained, cut.contexts[0], f" {choice}")[0] for choice in cut.choices]
    np.testing.assert_allclose(likelihoods[0][0], alone, atol=1e-4)


def test_examples_come_before_the_question_and_never_hold_the_item():
    rng = random.Random(4)
    pool = [make_item(rng) for _ in range(6)]
    item = add_examples(pool[1:2], pool, 2)[0]
    assert item.contexts[0] == f"{pool[0].example}\n\n{pool[2].example}\n\n{pool[1].contexts[0]}"
    assert item[1:] == pool[1][1:]
    assert pool[0].example.endswith(f"\nAnswer: {pool[0].choices[pool[0].answer]}")
    # What an item begins with stays before its examples, which are those with the same beginning.
    about = [Item((f"About {word}. Q{place}:",), ("a",), 0, "", f"About {word}. ") for place, word in enumerate("xyxy")]
    assert add_examples(about[3:], about, 1)[0].contexts == ("About y. Q1: a\n\nQ3:",)
