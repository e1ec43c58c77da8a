"""Validation by source against a naive computation, token by token."""

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

SEQ_LEN, EOS = 24, 318


def run_evaluation(evaluated: TrainedModel, *, max_tokens: int, batch: int = 7) -> dict[str, Any]:
    train = evaluated.train.with_values(global_batch=batch, micro_batch=batch)
    return evaluate(replace(evaluated, train=train), max_tokens, [], lambda name: contextlib.nullcontext(no_progress))


@torch.no_grad()
def evaluate_naively(model: LanguageModel, shard_set: ShardSet, max_tokens: int) -> dict[str, tuple[float, int, int]]:
    """Return (nats, tokens, bytes) of each source, one window after another, one target at a time."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0, 0])
    left = max_tokens
    for shard in shard_set.splits["val"]:
        tokens, sources = shard.read().tolist(), list[str]()
        for document in shard.documents().to_pylist():
            sources += [document["source"]] * document["length"]
        for begin in range(0, len(tokens) - 1, SEQ_LEN):
            window = tokens[begin : begin + SEQ_LEN + 1]
            logs = model(torch.tensor([window[:-1]]))[0].double().log_softmax(-1)
            for at in range(1, min(len(window), left - begin + 1)):
                own = sums[sources[begin + at]]
                own[0] -= logs[at - 1, window[at]].item()
                own[1] += 1
                own[2] += len(shard_set.vocabulary.decode([window[at]])) if window[at] != EOS else 0
        left -= min(left, len(tokens) - 1)
    return {name: (nats, int(count), int(size)) for name, (nats, count, size) in sums.items()}


@pytest.mark.parametrize("max_tokens", [1_000, 10**9])
def test_losses_by_source_equal_a_naive_computation(evaluated, shard_set, max_tokens):
    line = run_evaluation(evaluated, max_tokens=max_tokens)
    expected = evaluate_naively(evaluated.model, shard_set, max_tokens)
    assert set(expected) == {"prose", "code"}
    nats, tokens, sizes = (dict(zip(expected, column, strict=True)) for column in zip(*expected.values(), strict=True))
    assert line["val_loss_by_source"] == pytest.approx({name: nats[name] / tokens[name] for name in expected}, rel=1e-5)
    bits = {name: nats[name] / math.log(2) / sizes[name] for name in expected}
    assert line["val_bits_per_byte_by_source"] == pytest.approx(bits, rel=1e-5)
    total, count = sum(nats.values()), sum(tokens.values())
    assert line["val_tokens"] == count == min(max_tokens, sum(one.num_tokens - 1 for one in shard_set.splits["val"]))
    assert line["val_loss"] == pytest.approx(total / count, rel=1e-5)
    assert line["val_bits_per_byte"] == pytest.approx(total / math.log(2) / sum(sizes.values()), rel=1e-5)
    assert line["val_perplexity"] == pytest.approx(math.exp(line["val_loss"]))
    parts = line["val_loss_by_part"]
    assert len(parts) == (32 if count >= 32 * SEQ_LEN else 0)
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
