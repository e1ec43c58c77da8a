"""The order of windows: each once an epoch, fixed numbers; a run reads it, and every token is accounted for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shards.format.document_table import read_sources
from shards.format.windows.order import WindowOrder
from shards.format.windows.window_reader import account_tokens
from shards.torch.batch import number_documents
from trainer.recipe import TrainConfig
from trainer.train.step import open_training_windows

TRAIN = TrainConfig(seq_len=32, global_batch=8, micro_batch=8, steps=1, seed=3, document_mask=True)


def test_windows_equal_the_tokens_read_straight(shard_set):
    shards = shard_set.splits["train"]
    order = WindowOrder([shard.num_tokens for shard in shards], seq_len=32, seed=3)
    samples = 2 * order.per_epoch + 5
    with open_training_windows(shard_set, TRAIN, stop=samples) as windows:
        for first in range(0, samples, 7):
            batch = windows.read(range(first, min(first + 7, samples)))
            assert torch.equal(batch["document_ids"], number_documents(batch["input_ids"], shard_set.eos_id))
            for row, number in enumerate(range(first, min(first + 7, samples))):
                place = order.locate(number)
                straight = shards[place.shard].read(place.start, place.start + 33).tolist()
                assert batch["input_ids"][row].tolist() == straight[:-1]
                assert batch["labels"][row].tolist() == straight[1:]


@pytest.mark.parametrize("epochs", [0.0, 0.1, 1.0, 1.04, 2.6])
def test_every_token_is_accounted_for(shard_set, epochs):
    shards = shard_set.splits["train"]
    order = WindowOrder([shard.num_tokens for shard in shards], seq_len=32, seed=3)
    samples = int(epochs * order.per_epoch)
    names = ["code", "prose"]
    labels = [np.repeat(*reversed(read_sources(shard, names))) for shard in shards]
    counts, seen, repeated = np.zeros(2, int), [np.zeros(len(label), bool) for label in labels], np.zeros(2, int)
    for number in range(samples):
        place = order.locate(number)
        targets = slice(place.start + 1, place.stop)
        counts += np.bincount(labels[place.shard][targets], minlength=2)
        repeated += np.bincount(labels[place.shard][targets][seen[place.shard][targets]], minlength=2)
        seen[place.shard][targets] = True
    account = account_tokens(shards, names, order, samples)
    assert account["tokens_by_source"] == {
        name: {"used": counts[i], "repeated": repeated[i]} for i, name in enumerate(names)
    }
    assert account["tokens_used"] == counts.sum() == samples * 32
    assert account["tokens_repeated"] == repeated.sum()
    if epochs == 1:
        assert account["tokens_cropped_per_epoch"] == sum(int((~mask).sum()) for mask in seen)
