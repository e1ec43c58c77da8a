"""What to do after a micro-batch that did not fit in memory: find the next smaller one that fits."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib

import torch

from shards.terminal.command_names import called_as
from trainer.session import Session
from trainer.train.step import accumulate_gradients


def describe_out_of_memory(session: Session) -> str:
    """Return the message for a step that ran out of memory; it names the next smaller micro-batch that fits."""
    fits = find_fitting_micro_batch(session)
    smaller = f"Choose a smaller one (`{called_as('trainer', 'fit')}` says what fits a GPU)"
    remedy = f"The next smaller that fits is {fits}" if fits else smaller
    return (
        f"step {session.step + 1}: train.micro_batch = {session.recipe.train.micro_batch}: out of memory. {remedy}: "
        f"--set train.micro_batch={fits or 'N'}, or more train.activation_checkpointing. {session.describe_saved()}"
    )


def find_fitting_micro_batch(session: Session) -> int | None:
    """Try smaller micro-batches than the one out of memory, the largest first; return the first that fits, or None.

    With several ranks nothing is tried: all ranks would have to try together, and only this one is here.
    """
    train = session.recipe.train
    sizes = [size for size in range(1, train.micro_batch) if train.global_batch % size == 0]
    fields = ("input_ids", "labels", *(["document_ids"] if train.document_mask else []))
    moments: list[torch.Tensor] = []
    for size in reversed(sizes if session.ranks == 1 else []):
        with contextlib.suppress(torch.OutOfMemoryError):
            # The optimizer allocates its two moments at the end of the first step; every later step has them.
            if not session.step and not moments:
                moments = [torch.empty_like(weight) for weight in session.model.parameters() for _ in range(2)]
            zeros = torch.zeros(size, train.seq_len, dtype=torch.int64)
            # A step of smaller micro-batches has at least two; all after the first have its gradients beside them.
            for _ in range(2):
                accumulate_gradients(session, dict.fromkeys(fields, zeros), 2)
            return size
    return None
