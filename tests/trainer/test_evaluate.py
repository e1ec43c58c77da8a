"""Validation by source against a naive computation, token by token."""

from __future__ import annotations

import contextlib
import copy
import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from shards import ShardSet
from shards.terminal.reporter import no_progress
from trainer.evaluation.evaluate import evaluate
from trainer.model.decoder import LanguageModel
from trainer.model.generate import TrainedModel

SEQ_LEN = 24


def run_evaluation(evaluated: TrainedModel, *, max_tokens: int, batch: int = 7) -> dict[str, Any]:
    train = evaluated.train.model_copy(update={"global_batch": batch, "micro_batch": batch})
    return evaluate(replace(evaluated, train=train), max_tokens, [], lambda name: contextlib.nullcontext(no_progress))


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
def test_losses_by_source_equal_a_naive_computation(evaluated, shard_set, max_tokens):
    line = run_evaluation(evaluated, max_tokens=max_tokens)
    expected = evaluate_naively(evaluated.model, shard_set, max_tokens)
    assert set(line["val_loss_by_source"]) == set(expected) == {"prose", "code"}
    for name, (nats, tokens, size) in expected.items():
        assert line["val_loss_by_source"][name] == pytest.approx(nats / tokens, rel=1e-5)
        assert line["val_bits_per_byte_by_source"][name] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert abs(line["val_loss_by_source"]["prose"] - line["val_loss_by_source"]["code"]) > 0.01
    val_tokens = sum(shard.num_tokens - 1 for shard in shard_set.splits["val"])
    assert line["val_tokens"] == sum(tokens for _, tokens, _ in expected.values()) == min(max_tokens, val_tokens)
    nats, size = (sum(sums[index] for sums in expected.values()) for index in (0, 2))
    assert line["val_loss"] == pytest.approx(nats / line["val_tokens"], rel=1e-5)
    assert line["val_bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    parts = line["val_loss_by_part"]
    assert len(parts) == (32 if line["val_tokens"] >= 32 * SEQ_LEN else 0)
    assert line["val_loss"] == pytest.approx(np.mean(parts or line["val_loss"]), rel=1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # while torch imports its compiler
def test_a_compiled_model_is_scored_uncompiled_and_in_smaller_batches(evaluated):
    graphs: list[torch.fx.GraphModule] = []
    rows: list[int] = []
    plain = run_evaluation(evaluated, max_tokens=1_000)
    compiled = copy.deepcopy(evaluated.model)
    compiled.compile(backend=lambda graph, _: graphs.append(graph) or graph)
    compiled.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    found = run_evaluation(replace(evaluated, model=compiled), max_tokens=1_000, batch=9)
    assert not graphs
    assert max(rows) == 2
    assert found["val_loss_by_source"] == pytest.approx(plain["val_loss_by_source"], rel=1e-6)
