"""The documents of a step's batch by how much each raises the batch's loss: where a spike comes from.

The batch is read once more, without gradients, by the weights of now: those after the step, or a few steps later. Ranks
share the forward passes.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from shards.errors import plural
from shards.torch import TokenWindows
from shards.trace.locate import Place
from shards.trace.window_documents import find_window_documents
from trainer.device import autocast
from trainer.session import Session


class DocumentLoss(NamedTuple):
    """The part of a document in a row of a batch, and its loss."""

    row: int
    """The row of the global batch, from 0."""
    place: Place
    targets: int
    """How many of the row's targets are tokens of the document."""
    nats: float
    """Their loss, summed."""

    def __str__(self) -> str:
        place, tokens = self.place, plural(self.place.tokens, "token")
        where = f"{place.source} {place.unit} row {place.row} ({place.shard}, row {self.row} of the batch)"
        return f"{self.nats / self.targets:.3f} nats a token over {self.targets} of {tokens}: {where}"


def rank_batch_documents(session: Session, windows: TokenWindows, step: int) -> list[DocumentLoss]:
    """Return the documents of a step's batch, the one that raises the loss most first; every rank calls it.

    A document raises the loss by its own loss, less what as many tokens have at the batch's usual loss: the median of
    the documents' means. Losses that are not finite come first.

    Raises:
        ShardSetError: a shard is corrupt.
    """
    batch = session.recipe.train.global_batch
    first = (step - 1) * batch
    losses = _measure_targets(session, windows, first, batch)
    found: list[DocumentLoss] = []
    shards = session.shard_set.splits["train"]
    for row, (window, places) in enumerate(find_window_documents(shards, session.order, first, batch)):
        for place in places:
            # The first token of a window has nothing before it: it is never a target.
            start = max(place.start, window.start + 1) - window.start - 1
            stop = min(place.start + place.tokens, window.stop) - window.start - 1
            if stop > start:
                found.append(DocumentLoss(row, place, stop - start, float(losses[row, start:stop].sum())))
    means = np.array([own.nats / own.targets for own in found])
    usual = float(np.median(means[np.isfinite(means)])) if np.isfinite(means).any() else 0.0

    def rise(own: DocumentLoss) -> float:
        excess = own.nats - own.targets * usual
        return excess if math.isfinite(excess) else math.inf

    return sorted(found, key=rise, reverse=True)


def _measure_targets(session: Session, windows: TokenWindows, first: int, batch: int) -> npt.NDArray[np.float64]:
    """Return the loss of each target of a batch in nats, float64 `(batch, seq_len)`."""
    train, device = session.recipe.train, session.device
    losses = torch.zeros((batch, train.seq_len), dtype=torch.float64, device=device)
    was_training = session.model.training
    session.model.eval()
    # Micro-batches in turns: all ranks make equally many passes, which sharded weights need.
    with torch.no_grad(), autocast(session.precision, device):
        for row in range(session.rank * train.micro_batch, batch, session.ranks * train.micro_batch):
            numbers = range(first + row, first + row + train.micro_batch)
            sample = {name: tensor.to(device) for name, tensor in windows.read(numbers).items()}
            documents = sample.get("document_ids")
            own = session.model(sample["input_ids"], sample["labels"], reduction="none", documents=documents)
            losses[row : row + train.micro_batch] = own
    session.model.train(was_training)
    if session.ranks > 1:
        dist.all_reduce(losses)
    return losses.cpu().numpy()
