"""The windows that a training run gives its model, noted step by step as they are given."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from shards.torch.windows import Sample
from trainer.session import Session
from trainer.train import step as training_step

GivenWindows = dict[int, list[list[int]]]
"""For each step, counted from 1, its windows of `seq_len + 1` tokens in the order in which they were given."""


@contextmanager
def note_given_windows() -> Iterator[GivenWindows]:
    """Yield what runs in this process give to their models until the body ends; their steps take several rounds."""
    given: GivenWindows = {}
    accumulate = training_step.accumulate_gradients

    def watch(session: Session, batch: Sample, rounds: int) -> torch.Tensor:
        if rounds > 1:  # one round is a trial of the weights before a save, and no part of a step
            windows = torch.cat([batch["input_ids"], batch["labels"][:, -1:]], dim=1)
            given.setdefault(session.step + 1, []).extend(windows.tolist())
        return accumulate(session, batch, rounds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_step, "accumulate_gradients", watch)
        yield given
