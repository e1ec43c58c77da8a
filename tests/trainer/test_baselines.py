"""A small model, trained for a minute on real stories, against counting: it beats unigrams and bigrams, and it ends.

Skipped where the corpora are absent; `TOKENMILL_CORPORA` says where they are. About a minute and a half on two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shards import ShardSet, open_set

STORIES = Path(os.environ.get("TOKENMILL_CORPORA", Path(__file__).parents[2] / "../shared/corpora")) / "tinystories"

pytestmark = [
    pytest.mark.timeout(900),  # on a machine that does other things as well
    pytest.mark.skipif(
        not os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"),
        reason="trains for minutes on both cores: set TOKENMILL_EXHAUSTIVE_TESTS=1 to run it",
    ),
    pytest.mark.skipif(
        not any(STORIES.glob("*.parquet")), reason=f"no stories in {STORIES}; set TOKENMILL_CORPORA to the corpora"
    ),
]

DATA_RECIPE = f"""
name = "stories"
[[sources]]
name = "tinystories"
paths = [{json.dumps(str(STORIES.resolve() / "*.parquet"))}]
weight = 1
[tokenizer]
vocab_size = 1024
[mix]
tokens = "max"
[split]
val_tokens = 40_000
"""

TRAIN_RECIPE = """
name = "stories"
[model]
kind = "llama"
hidden_size = 128
num_hidden_layers = 4
num_attention_heads = 4
intermediate_size = 384
max_position_embeddings = 512
tie_word_embeddings = true
[train]
seq_len = 256
global_batch = 4
micro_batch = 4
steps = 700
device = "cpu"
[optimizer]
lr = 3e-3
[schedule]
warmup_steps = 30
[eval]
every_steps = 700
max_tokens = 1_000_000
[checkpoint]
every_steps = 700
"""

PROMPTS = ["", "Once upon a time", "One day, a little girl", "Tom and his dog", "The cat", "Lily was sad", "Mom said"]


@dataclass
class Trained:
    """A set of stories, and a run on it."""

    shard_set: ShardSet
    run: Path
    result: dict[str, Any]


def call(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Trained:
    folder = tmp_path_factory.mktemp("stories")
    (folder / "data.toml").write_text(DATA_RECIPE)
    (folder / "train.toml").write_text(TRAIN_RECIPE)
    call("pipeline", "build", folder / "data.toml", "--out", folder / "set", "--workers", 1)
    out = call("trainer", "train", folder / "train.toml", "--shards", folder / "set", "--run", folder / "run", "--json")
    return Trained(open_set(folder / "set"), folder / "run", json.loads(out))


def read_pairs(shard_set: ShardSet, split: Any) -> np.ndarray:
    """Return a split's (token, next token), int64 `(pairs, 2)`; none across shards, as the trainer predicts them."""
    shards = [shard.read().astype(np.int64) for shard in shard_set.splits[split]]
    return np.concatenate([np.stack((tokens[:-1], tokens[1:]), axis=1) for tokens in shards])


def count_baselines(shard_set: ShardSet) -> tuple[float, float]:
    """Return the validation loss of unigrams and of bigrams in nats per token.

    Unigrams are counted with one added to each; bigrams are mixed with them by the weight that is best on the
    validation tokens themselves, which is more than the model is allowed.
    """
    size, seen, asked = shard_set.vocab_size, read_pairs(shard_set, "train"), read_pairs(shard_set, "val")
    unigram = np.bincount(seen[:, 1], minlength=size) + 1.0
    unigram /= unigram.sum()
    counts = np.bincount(seen[:, 0] * size + seen[:, 1], minlength=size * size).reshape(size, size)
    after = counts[asked[:, 0], asked[:, 1]] / np.maximum(counts.sum(1)[asked[:, 0]], 1)
    alone = unigram[asked[:, 1]]
    mixed = [-np.log(weight * after + (1 - weight) * alone).mean() for weight in np.linspace(0.5, 0.99, 50)]
    return float(-np.log(alone).mean()), float(min(mixed))


def test_a_small_model_beats_unigrams_and_bigrams(trained):
    unigram, bigram = count_baselines(trained.shard_set)
    # Both were asked the same: every token of the validation shards but the first of each.
    assert trained.result["val_tokens"] == len(read_pairs(trained.shard_set, "val"))
    assert 0 < bigram < unigram < np.log(1024)
    assert trained.result["val_loss"] < bigram
    assert trained.result["val_loss"] < unigram - 2


def test_samples_stop_at_the_end_of_a_story(trained):
    prompts = [part for prompt in PROMPTS for part in ("--prompt", prompt)]
    out = call("trainer", "sample", trained.run, *prompts, "--max-new-tokens", 480, "--temperature", 1, "--json")
    samples = [json.loads(line) for line in out.splitlines()]
    assert [sample["prompt"] for sample in samples] == PROMPTS
    ended = [sample for sample in samples if sample["finish"] == "eos"]
    assert len(ended) >= 4
    assert all(trained.shard_set.eos_id not in sample["token_ids"] for sample in samples)
    assert all("<|endoftext|>" not in sample["text"] for sample in ended)
