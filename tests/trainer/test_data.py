"""Every token that a run reads or skips is accounted for."""

import numpy as np
import pytest

from shards.format.document_table import read_sources
from shards.format.windows.order import WindowOrder
from shards.format.windows.window_reader import account_tokens
from tests.support.token_sets import locate


@pytest.mark.parametrize("epochs", [0.0, 0.1, 1.0, 1.04, 2.6])
def test_every_token_is_accounted_for(shard_set, epochs):
    shards = shard_set.splits["train"]
    order = WindowOrder([shard.num_tokens for shard in shards], seq_len=32, seed=3)
    samples = int(epochs * order.per_epoch)
    names = shard_set.manifest.source_names
    labels = [np.repeat(*reversed(read_sources(shard, shard_set.source_numbers))) for shard in shards]
    counts, seen, repeated = np.zeros(2, int), [np.zeros(len(label), bool) for label in labels], np.zeros(2, int)
    for number in range(samples):
        place = locate(order, number)
        targets = slice(place.start + 1, place.stop)
        counts += np.bincount(labels[place.shard][targets], minlength=2)
        repeated += np.bincount(labels[place.shard][targets][seen[place.shard][targets]], minlength=2)
        seen[place.shard][targets] = True
    account = account_tokens(shard_set, order, samples)
    assert account["tokens_by_source"] == {
        name: {"used": counts[i], "repeated": repeated[i]} for i, name in enumerate(names)
    }
    assert account["tokens_used"] == counts.sum() == samples * 32
    assert account["tokens_repeated"] == repeated.sum()
    if epochs == 1:
        assert account["tokens_cropped_per_epoch"] == sum(int((~mask).sum()) for mask in seen)
