"""The training loop: read, forward, backward, clip, step; then log, validate, save.

Exact: with the same recipe, set and machine, a run that was interrupted at any step and resumed has bit-identical
losses to one that never stopped (on the CPU; the same number of threads). SIGINT and SIGTERM let the step end, save a
checkpoint and leave; a second one stops at once.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor

from shards import ShardSetError
from trainer.checkpoint import checkpoint_path
from trainer.data import Loader
from trainer.device import autocast
from trainer.errors import RunError
from trainer.evaluate import evaluate
from trainer.metrics import MetricsLog
from trainer.model import count_parameters
from trainer.optim import learning_rate, set_learning_rate
from trainer.progress import StepProgress, describe_validation
from trainer.session import Session, open_metrics


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: every step done, or the number of the signal that ended it."""

    session: Session
    seconds: float
    interrupted_by: int | None
    last_step: dict[str, Any] | None
    last_validation: dict[str, Any] | None


class StopRequest:
    """Turns the first SIGINT or SIGTERM into a flag; the second does what it always did.

    Attributes:
        signal: the number of the signal received, or None.
    """

    def __init__(self, say: Callable[[str], None]):
        self.signal: int | None = None
        self._say = say
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._restore()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        self._restore()
        self._say(f"{signal.Signals(number).name}: finishing the step, then saving; send it again to stop at once")

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def run_training(session: Session, say: Callable[[str], None]) -> Outcome:
    """Train until the recipe's last step, or until asked to stop.

    Raises:
        RunError: the loss or the gradient is not finite, or the data cannot be read; says what is left.
        OSError: metrics or a checkpoint cannot be written; earlier checkpoints are whole.
    """
    recipe, began = session.recipe, time.perf_counter()
    parameters = count_parameters(recipe.model, session.shard_set.vocab_size)
    say(f"{parameters:,} parameters on {session.device} in {session.precision}, {torch.get_num_threads()} threads")
    if recipe.train.compile:
        session.model.compile()
    shards = session.shard_set.splits["train"]
    last_sample = session.samples + (recipe.train.steps - session.step) * recipe.train.global_batch
    try:
        with (
            open_metrics(session, say) as log,
            Loader(shards, session.order, stop=last_sample) as loader,
            StepProgress(recipe.name, steps=recipe.train.steps, done=session.step) as progress,
            StopRequest(progress.show_line) as stop,
        ):
            _run_steps(session, loader, log, progress, stop)
    except ShardSetError as error:
        raise RunError(f"{error}\nStopped after step {session.step}. {_describe_saved(session)}") from error
    return Outcome(session, time.perf_counter() - began, stop.signal, log.last_step, log.last_validation)


def _run_steps(session: Session, loader: Loader, log: MetricsLog, progress: StepProgress, stop: StopRequest) -> None:
    recipe = session.recipe
    if _is_due(session, recipe.eval.every_steps) and (log.last_validation or {}).get("step") != session.step:
        _validate(session, log, progress)  # The run was stopped between this step and its validation.
    while session.step < recipe.train.steps and stop.signal is None:
        record = take_step(session, loader)
        log.write(record)
        progress.show_step(record)
        if _is_due(session, recipe.checkpoint.every_steps) or stop.signal is not None:
            session.save()
        if _is_due(session, recipe.eval.every_steps) and stop.signal is None:
            _validate(session, log, progress)
    if session.saved is None or session.saved.resolve() != checkpoint_path(session.run, session.step).resolve():
        session.save()


def take_step(session: Session, loader: Loader) -> dict[str, Any]:
    """Take one optimizer step on the next `global_batch` samples.

    Returns:
        The step's line in metrics.jsonl: `step` (from 1), `tokens` (targets so far), `loss` (mean in nats), `lr`,
        `grad_norm` (before clipping), `tokens_per_s`, `data_wait_ms` (time the step waited for the loader).

    Raises:
        RunError: the loss or the gradient's norm is not finite; the weights are as before the step.
        ShardSetError: a shard is corrupt.
    """
    train, began = session.recipe.train, time.perf_counter()
    session.model.train()
    loss, waited = _accumulate_gradients(session, loader)
    grad_norm = torch.nn.utils.clip_grad_norm_(session.model.parameters(), session.recipe.optimizer.grad_clip).item()
    if not math.isfinite(loss) or not math.isfinite(grad_norm):
        raise RunError(
            f"step {session.step + 1}: loss {loss}, gradient norm {grad_norm}; expected finite numbers. "
            f"The batch was samples [{session.samples}, {session.samples + train.global_batch}). "
            f"Lower optimizer.lr or raise schedule.warmup_steps. {_describe_saved(session)}"
        )
    lr = learning_rate(session.step, session.recipe)
    set_learning_rate(session.optimizer, lr)
    session.optimizer.step()
    session.optimizer.zero_grad(set_to_none=True)
    session.step += 1
    session.samples += train.global_batch
    return {
        "step": session.step,
        "tokens": session.samples * train.seq_len,
        "loss": loss,
        "lr": lr,
        "grad_norm": grad_norm,
        "tokens_per_s": round(train.global_batch * train.seq_len / (time.perf_counter() - began), 1),
        "data_wait_ms": round(waited * 1000, 3),
    }


def _accumulate_gradients(session: Session, loader: Loader) -> tuple[float, float]:
    """Add up the gradients of one global batch; return its mean loss in nats and the seconds waited for data."""
    train = session.recipe.train
    micro_batches = train.global_batch // train.micro_batch
    total = torch.zeros((), device=session.device)
    waited = 0.0
    for index in range(micro_batches):
        asked = time.perf_counter()
        windows: Tensor = loader.read(session.samples + index * train.micro_batch, train.micro_batch)
        waited += time.perf_counter() - asked
        windows = windows.to(session.device, non_blocking=True)
        with autocast(session.precision, session.device):
            loss = session.model(windows[:, :-1], windows[:, 1:])
        # Micro-batches are of one size, so that the mean of their means is the mean over the global batch.
        (loss / micro_batches).backward()
        total += loss.detach() / micro_batches
    return total.item(), waited


def _validate(session: Session, log: MetricsLog, progress: StepProgress) -> None:
    validation = evaluate(
        session.model,
        session.shard_set,
        seq_len=session.recipe.train.seq_len,
        max_tokens=session.recipe.eval.max_tokens,
        batch=session.recipe.train.micro_batch,
        precision=session.precision,
        token_bytes=session.token_bytes,
    )
    record = {"step": session.step, **validation.to_metrics()}
    log.write(record)
    progress.show_line(describe_validation(record))


def _is_due(session: Session, every_steps: int) -> bool:
    return session.step > 0 and (session.step % every_steps == 0 or session.step == session.recipe.train.steps)


def _describe_saved(session: Session) -> str:
    if session.saved is None:
        return "No checkpoint had been written."
    return f"The last checkpoint is {session.saved}; --resume auto goes on from there."
