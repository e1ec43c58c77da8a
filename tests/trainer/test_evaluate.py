"""Validation by source against a naive computation, token by token."""

from __future__ import annotations

import json
import math
from collections import defaultdict

import numpy as np
import pytest
import torch

from shards import ShardSet
from shards.format.document_table import number_token_sources
from shards.format.vocabulary import read_vocabulary
from trainer.evaluation.validation import EvaluatedModel, evaluate, summarise_evaluation
from trainer.model.decoder import LanguageModel, build_model
from trainer.recipe import ModelConfig, TrainConfig

SEQ_LEN = 24


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """A model whose losses differ much between tokens, as an untrained one's would not."""
    config = ModelConfig(
        kind="llama",
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        max_position_embeddings=SEQ_LEN,
        tie_word_embeddings=True,
    )
    model = build_model(config, 320, seed=3)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(30)
    return model


def run_evaluation(
    model: LanguageModel, shard_set: ShardSet, *, max_tokens: int, batch: int = 7
) -> dict[str, np.ndarray]:
    train = TrainConfig(seq_len=SEQ_LEN, global_batch=batch, micro_batch=batch, steps=1)
    evaluated = EvaluatedModel(model, train, "fp32", b"", shard_set.eos_id, None, shard_set)
    return evaluate(evaluated, shard_set, max_tokens)


def evaluate_naively(model: LanguageModel, shard_set: ShardSet, max_tokens: int) -> dict[str, tuple[float, int, int]]:
    """Return (nats, tokens, bytes) of each source, one target at a time, texts decoded document by document."""
    tokenizer = shard_set.tokenizer()
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0, 0])
    left = max_tokens
    for shard in shard_set.splits["val"]:
        tokens = shard.read().tolist()
        for document in shard.documents().to_pylist():
            start, stop = document["start"], document["start"] + document["length"]
            counted = [p for p in range(start, stop) if 0 < p <= left]
            for position in counted:
                window = (position - 1) // SEQ_LEN * SEQ_LEN
                context = torch.tensor([tokens[window:position]])
                with torch.no_grad():
                    log_probabilities = model(context)[0, -1].double().log_softmax(-1)
                sums[document["source"]][0] -= log_probabilities[tokens[position]].item()
                sums[document["source"]][1] += 1
            if counted and len(counted) == stop - start:
                text = tokenizer.decode(tokens[start : stop - 1], skip_special_tokens=False)
                sums[document["source"]][2] += len(text.encode())
            elif counted:
                # Cut at one end: the bytes of a token are the characters of its byte-level spelling.
                spellings = [tokenizer.id_to_token(tokens[p]) for p in counted if p != stop - 1]
                sums[document["source"]][2] += sum(map(len, spellings))
        left -= min(left, len(tokens) - 1)
    return {name: (nats, int(count), int(size)) for name, (nats, count, size) in sums.items()}


@pytest.mark.parametrize("max_tokens", [1_000, 10**9])
def test_losses_by_source_equal_a_naive_computation(model, shard_set, max_tokens):
    found = run_evaluation(model, shard_set, max_tokens=max_tokens)
    expected = evaluate_naively(model, shard_set, max_tokens)
    line = summarise_evaluation(found)
    assert set(found) == set(expected) == {"prose", "code"}
    for name, (nats, tokens, size) in expected.items():
        assert found[name].tolist() == [pytest.approx(nats, rel=1e-5), tokens, size]
        assert line["val_loss_by_source"][name] == pytest.approx(nats / tokens, rel=1e-5)
        assert line["val_bits_per_byte_by_source"][name] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert abs(line["val_loss_by_source"]["prose"] - line["val_loss_by_source"]["code"]) > 0.01
    val_tokens = sum(shard.num_tokens - 1 for shard in shard_set.splits["val"])
    assert line["val_tokens"] == sum(tokens for _, tokens, _ in expected.values()) == min(max_tokens, val_tokens)
    nats, size = (sum(sums[index] for sums in expected.values()) for index in (0, 2))
    assert line["val_loss"] == pytest.approx(nats / line["val_tokens"], rel=1e-5)
    assert line["val_bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)


def test_the_result_does_not_depend_on_the_batch(model, shard_set):
    small, large = (run_evaluation(model, shard_set, max_tokens=2_000, batch=batch) for batch in (1, 64))
    assert small.keys() == large.keys()
    for name, (nats, tokens, size) in small.items():
        assert large[name].tolist() == [pytest.approx(nats, rel=1e-6), tokens, size]


def test_evaluation_leaves_the_model_in_training_mode(model, shard_set):
    model.train()
    run_evaluation(model, shard_set, max_tokens=50)
    assert model.training


def test_every_token_has_its_documents_source(shard_set):
    shard = shard_set.splits["train"][0]
    expected = [row["source"] for row in shard.documents().to_pylist() for _ in range(row["length"])]
    names = ["code", "prose"]
    for stop in (1, 2, 57, shard.num_tokens):
        assert [names[code] for code in number_token_sources(shard, names, stop)] == expected[:stop]


def test_token_bytes_add_up_to_the_text(shard_set):
    lengths = shard_set.vocabulary.text_lengths()
    text = "naïve café 中文 🙂 grind ( grain )\n"
    assert lengths[shard_set.tokenizer().encode(text).ids].sum() == len(text.encode())
    assert lengths[shard_set.eos_id] == 0


def test_a_tokenizer_that_is_not_byte_level_has_no_byte_lengths(shard_set):
    tokenizer = json.loads((shard_set.path / "tokenizer.json").read_bytes())
    tokenizer["model"]["vocab"]["\u2581the"] = tokenizer["model"]["vocab"].pop("t")  # as SentencePiece writes a space
    with pytest.raises(ValueError, match="byte-level"):
        read_vocabulary(json.dumps(tokenizer).encode())


def test_one_target_can_be_evaluated(tmp_path, model, make_set):
    tiny = make_set(tmp_path / "set", shard_tokens={"train": [500], "val": [300]})
    assert summarise_evaluation(run_evaluation(model, tiny, max_tokens=1))["val_tokens"] == 1
