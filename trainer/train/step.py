"""One optimizer step: read, forward, backward, clip, step. Nothing here waits for the device but `fetch_losses`."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import time
import warnings

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from shards import ShardSet
from shards.format.chat import NO_TARGET
from shards.torch import TokenWindows
from shards.torch.windows import Sample
from trainer.device import add_over_ranks, autocast
from trainer.metrics import Record
from trainer.optim import own_part, set_learning_rates
from trainer.recipe import TrainConfig
from trainer.session import Session


def open_training_windows(shard_set: ShardSet, train: TrainConfig, *, stop: int) -> TokenWindows:
    """Open the windows or rows of training steps; no token is read yet. Use as a context manager, or close it.

    Args:
        shard_set: the set.
        train: `seq_len`, `seed` and `rows`.
        stop: one past the last window that a step takes or tries; later windows are neither read nor decoded ahead.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the session has said which shards are too short
        return TokenWindows(
            shard_set,
            seq_len=train.seq_len,
            seed=train.seed,
            samples=stop,
            rows=train.rows,
            fields=("document_ids",) if train.rows == "packed" else (),
        )


def take_step(session: Session, windows: TokenWindows) -> Record:
    """Take one optimizer step on the next `global_batch` windows, without waiting for the device.

    A rank reads the micro-batches `rank`, `rank + ranks`, ... of the global batch.

    Returns:
        `step` (from 1), `tokens` (slots so far), `loss` (of this rank, in nats), `grad_norm` (before clipping) and
        with packed rows `targets` (of this step), which are still tensors on the device, `lr`, and `data_wait_ms` (time
        that the step waited for the loader).

    Raises:
        ShardSetError: a shard is corrupt.
    """
    train = session.recipe.train
    rounds = train.global_batch // (train.micro_batch * session.ranks)
    total = torch.zeros((), device=session.device)
    waited, targets = 0.0, 0

    # Forward and backward, one micro-batch after another.
    for index in range(rounds):
        asked = time.perf_counter()
        row = (index * session.ranks + session.rank) * train.micro_batch
        first = session.windows + row
        batch = windows.read(range(first, first + train.micro_batch))
        waited += time.perf_counter() - asked
        if train.rows == "packed":
            targets += int((batch["labels"] != NO_TARGET).sum())
        _exchange_gradients(session.forward, with_this_one=index == rounds - 1)
        total += accumulate_gradients(session, batch, rounds)

    counted: Record = {}
    if train.rows == "packed":
        counted["targets"] = torch.full((), targets, device=session.device)  # which does not wait for the device
        add_over_ranks(counted["targets"])
        scale = train.global_batch * train.seq_len / counted["targets"]
        total *= scale
        _scale_gradients(session.model, scale)

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
        **counted,
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
    ids, labels, train = batch["input_ids"], batch["labels"], session.recipe.train
    with autocast(session.precision, session.device):
        if train.rows == "packed":
            # Micro-batches have unequally many targets: their sums are divided by a number that all share.
            loss: torch.Tensor = session.forward(ids, labels, documents=batch["document_ids"], reduction="sum")
            loss = loss * (session.ranks / (train.global_batch * train.seq_len))
        else:
            # Micro-batches have one size, so that the mean of their means is the mean over the global batch.
            loss = session.forward(ids, labels, documents=session.trained.number_documents(ids)) / rounds
    loss.backward()  # pyright: ignore[reportUnknownMemberType]
    return loss.detach()


def _scale_gradients(model: nn.Module, scale: torch.Tensor) -> None:
    """Multiply the step's gradients by a number on the device."""
    own = [own_part(weight.grad) for weight in model.parameters() if weight.grad is not None]
    torch._foreach_mul_(own, scale)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


def clip_gradients(session: Session, max_norm: float) -> torch.Tensor:
    """Scale the step's gradients down to a norm of at most `max_norm`; return the norm before, on the device."""
    norm = torch.nn.utils.clip_grad_norm_(session.model.parameters(), max_norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def fetch_losses(session: Session, taken: list[Record]) -> None:
    """Replace the tensors of steps by numbers, the mean over all ranks, in one transfer; add up targets in another."""
    figures = torch.stack([torch.stack((step["loss"].float(), step["grad_norm"].float())) for step in taken])
    add_over_ranks(figures)
    numbers: list[list[float]] = (figures / session.ranks).tolist()
    for step, (loss, grad_norm) in zip(taken, numbers, strict=True):
        step["loss"] = loss
        step["grad_norm"] = grad_norm
    counts = [step["targets"] for step in taken if "targets" in step]
    added: list[int] = torch.stack(counts).tolist() if counts else []
    for step, targets in zip(taken, added, strict=False):
        session.targets += targets
        step["targets"] = session.targets
