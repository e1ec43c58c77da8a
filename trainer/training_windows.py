"""The windows of a run: `shards.torch` reads them, and the run takes them by number."""

from __future__ import annotations

import warnings

from shards import ShardSet
from shards.torch import TokenWindows
from trainer.recipe import TrainConfig


def open_training_windows(shard_set: ShardSet, train: TrainConfig, *, stop: int) -> TokenWindows:
    """Open the windows of a training run; nothing is read yet. Use as a context manager, or close it.

    Args:
        shard_set: the set.
        train: `seq_len`, `seed`, and whether samples have `document_ids` (`document_mask`).
        stop: one past the last window that a step takes or tries; later windows are neither read nor decoded ahead.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the session has said which shards are too short
        fields = ("document_ids",) if train.document_mask else ()
        return TokenWindows(shard_set, seq_len=train.seq_len, seed=train.seed, samples=stop, fields=fields)
