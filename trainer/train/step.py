"""One optimizer step: read, forward, backward, clip, step. Nothing here waits for the device but `fetch_losses`."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import time
import warnings

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from shards import ShardSet
from shards.torch import TokenWindows
from shards.torch.windows import Sample
from trainer.device import add_over_ranks, autocast
from trainer.metrics import Record
from trainer.optim import set_learning_rates
from trainer.recipe import TrainConfig
from trainer.session import Session


def open_training_windows(shard_set: ShardSet, train: TrainConfig, *, stop: int) -> TokenWindows:
    """Open the windows of training steps; nothing is read yet. Use as a context manager, or close it.

    Args:
        shard_set: the set.
        train: `seq_len` and `seed`.
        stop: one past the last window that a step takes or tries; later windows are neither read nor decoded ahead.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the session has said which shards are too short
        return TokenWindows(shard_set, seq_len=train.seq_len, seed=train.seed, samples=stop)


def take_step(session: Session, windows: TokenWindows) -> Record:
    """Take one optimizer step on the next `global_batch` windows, without waiting for the device.

    A rank reads the micro-batches `rank`, `rank + ranks`, ... of the global batch.

    Returns:
        `step` (from 1), `tokens` (targets so far), `loss` (of this rank, in nats) and `grad_norm` (before clipping),
        which are still tensors on the device, `lr`, and `data_wait_ms` (time that the step waited for the loader).

    Raises:
        ShardSetError: a shard is corrupt.
    """
    train = session.recipe.train
    rounds = train.global_batch // (train.micro_batch * session.ranks)
    total = torch.zeros((), device=session.device)
    waited = 0.0

    # Forward and backward, one micro-batch after another.
    for index in range(rounds):
        asked = time.perf_counter()
        row = (index * session.ranks + session.rank) * train.micro_batch
        first = session.windows + row
        batch = windows.read(range(first, first + train.micro_batch))
        waited += time.perf_counter() - asked
        _exchange_gradients(session.forward, with_this_one=index == rounds - 1)
        total += accumulate_gradients(session, batch, rounds)

    # The step itself.
    grad_norm = clip_gradients(session, session.recipe.optimizer.grad_clip)
    lr = set_learning_rates(session.optimizers, session.step, session.recipe)
    for optimizer in session.optimizers:
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        optimizer.zero_grad(set_to_none=True)
    session.step += 1
    return {
        "step": session.step,
        "tokens": session.windows * train.seq_len,
        "loss": total,
        "lr": lr,
        "grad_norm": grad_norm,
        "data_wait_ms": round(waited * 1000, 3),
    }


def _exchange_gradients(model: nn.Module, *, with_this_one: bool) -> None:
    """Let ranks exchange gradients once a step, with the last micro-batch."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(with_this_one)
    elif isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = with_this_one  # the flag that DDP's `no_sync` sets


def accumulate_gradients(session: Session, batch: Sample, rounds: int) -> torch.Tensor:
    """Add a micro-batch's part of the step's gradient; return its part of the loss, on the device."""
    session.model.train()
    if session.device.type == "cuda":
        batch = {name: tensor.pin_memory().to(session.device, non_blocking=True) for name, tensor in batch.items()}
    with autocast(session.precision, session.device):
        # Micro-batches have one size, so that the mean of their means is the mean over the global batch.
        documents = session.trained.number_documents(batch["input_ids"])
        loss: torch.Tensor = session.forward(batch["input_ids"], batch["labels"], documents=documents) / rounds
    loss.backward()  # pyright: ignore[reportUnknownMemberType]
    return loss.detach()


def clip_gradients(session: Session, max_norm: float) -> torch.Tensor:
    """Scale the step's gradients down to a norm of at most `max_norm`; return the norm before, on the device."""
    norm = torch.nn.utils.clip_grad_norm_(session.model.parameters(), max_norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def fetch_losses(session: Session, taken: list[Record]) -> None:
    """Replace the tensors of steps by numbers, the mean over all ranks, in one transfer."""
    figures = torch.stack([torch.stack((step["loss"].float(), step["grad_norm"].float())) for step in taken])
    add_over_ranks(figures)
    numbers: list[list[float]] = (figures / session.ranks).tolist()
    for step, (loss, grad_norm) in zip(taken, numbers, strict=True):
        step["loss"] = loss
        step["grad_norm"] = grad_norm
