"""The training loop: read, forward, backward, clip, step; then log, save, validate, and close the phase.

Exact: with the same recipe, set and machine, a run that was interrupted at any step and resumed has bit-identical
losses to one that never stopped (on the CPU; the same number of threads). Another micro-batch or number of ranks takes
the same samples in the same order; its losses differ by rounding alone. SIGINT and SIGTERM let the step end, save a
checkpoint and leave; a second one stops at once.

Nothing waits for the device inside a step: losses stay there and are fetched together every `log_every` steps, where
they are checked. Before a save the weights themselves are tried on a micro-batch of the next samples: those that give
a loss or a gradient that is not finite are never saved.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from shards import ShardSetError
from shards.errors import RunError
from shards.stores.files import write_text
from shards.terminal.display import ReportProgress, format_value, show_progress
from shards.trace.windows import trace_documents
from trainer.checkpoint import checkpoint_path, list_checkpoints, step_of
from trainer.data import Loader
from trainer.device import autocast
from trainer.evaluate import evaluate, summarise
from trainer.loss_checks import REMEDY, find_fault
from trainer.metrics import MetricsLog, describe_step
from trainer.model import count_parameters, label_documents
from trainer.optim import learning_rate
from trainer.phases import last_value, make_ledger
from trainer.session import Session, wait_for_ranks


def run_training(session: Session, say: Callable[[str], None], *, go_on: bool = False) -> Run:
    """Train until the recipe's last step, an off-ramp, or until asked to stop.

    Args:
        session: the run.
        say: called with each line the user should know.
        go_on: pass off-ramps, a failed smoke test and spikes of the loss.

    Returns:
        The run as it ended: every step done, interrupted, or at an off-ramp.

    Raises:
        RunError: the loss is not finite or rises suddenly, memory is too small, the data cannot be read, or metrics or
            a checkpoint cannot be written; earlier checkpoints are whole. Says which is left and how to go on.
        InputError: the run's metrics.jsonl holds something else than metrics.
    """
    recipe, shards, first = session.recipe, session.shard_set.splits["train"], session.rank == 0
    parameters = count_parameters(recipe.model, session.model.vocab_size)
    where = f"{session.ranks} x {session.device.type}" if session.ranks > 1 else str(session.device)
    say(f"{parameters:,} parameters on {where} in {session.precision}, {torch.get_num_threads()} threads")
    last_sample = session.samples + (recipe.train.steps - session.step) * recipe.train.global_batch
    try:
        with (
            MetricsLog(session.run, step=session.step, write=first) as log,
            Loader(shards, session.order, stop=last_sample) as loader,
            show_progress(recipe.name, unit="steps", show=first) as progress,
            catch_signals(say) as signals,
        ):
            wait_for_ranks()  # Every rank has read the log before one adds to it.
            session.seconds = max(session.seconds, log.seconds)
            if log.removed:
                say(f"metrics.jsonl: removed {log.removed} lines after step {session.step}; these are done again")
            run = Run(session, loader, log, progress, signals, say, go_on)
            run.take_steps()
            return run
    except (ShardSetError, OSError) as error:
        raise RunError(f"{error}\nStopped after step {session.step}. {session.describe_saved()}") from error


@contextlib.contextmanager
def catch_signals(say: Callable[[str], None]) -> Iterator[list[int]]:
    """Put the first SIGINT or SIGTERM into the list that this yields; the second does what it always did."""
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        previous.close()
        say(f"{signal.Signals(number).name}: finishing the step, then saving; send it again to stop at once")

    with contextlib.ExitStack() as previous:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous.callback(signal.signal, number, signal.signal(number, receive))
        yield received


def take_step(session: Session, loader: Loader) -> dict[str, Any]:
    """Take one optimizer step on the next `global_batch` samples, without waiting for the device.

    A rank reads the micro-batches `rank`, `rank + ranks`, ... of the global batch.

    Returns:
        `step` (from 1), `tokens` (targets so far), `loss` (of this rank, in nats) and `grad_norm` (before clipping),
        still tensors on the device, `lr`, `data_wait_ms` (time that the step waited for the loader).

    Raises:
        ShardSetError: a shard is corrupt.
    """
    train, model = session.recipe.train, session.forward
    rounds = train.global_batch // (train.micro_batch * session.ranks)
    session.model.train()
    total, waited = torch.zeros((), device=session.device), 0.0
    for index in range(rounds):
        asked = time.perf_counter()
        row = (index * session.ranks + session.rank) * train.micro_batch
        windows = loader.read(session.samples + row, train.micro_batch)
        waited += time.perf_counter() - asked
        # Gradients are exchanged once a step, with the last micro-batch.
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(index == rounds - 1)
        elif isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = index == rounds - 1  # what `no_sync` sets
        total += accumulate_gradients(session, windows, rounds)
    grad_norm = clip_gradients(session, session.recipe.optimizer.grad_clip)
    lr = learning_rate(session.step, session.recipe)
    for optimizer in session.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    session.step += 1
    session.samples += train.global_batch
    return {
        "step": session.step,
        "tokens": session.samples * train.seq_len,
        "loss": total,
        "lr": lr,
        "grad_norm": grad_norm,
        "data_wait_ms": round(waited * 1000, 3),
    }


def accumulate_gradients(session: Session, windows: torch.Tensor, rounds: int) -> torch.Tensor:
    """Add a micro-batch's part of the gradient; return its part of the loss, on the device."""
    if session.device.type == "cuda":
        windows = windows.pin_memory().to(session.device, non_blocking=True)
    ids = windows[:, :-1]
    documents = label_documents(ids, session.shard_set.eos_id) if session.recipe.train.document_mask else None
    with autocast(session.precision, session.device):
        # Micro-batches are of one size, so that the mean of their means is the mean over the global batch.
        loss = session.forward(ids, windows[:, 1:], documents=documents) / rounds
    loss.backward()
    return loss.detach()


def clip_gradients(session: Session, most: float) -> torch.Tensor:
    """Scale the gradients down to a norm of at most `most`; return the norm before, on the device."""
    norm = torch.nn.utils.clip_grad_norm_(session.model.parameters(), most)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def fetch_losses(session: Session, taken: list[dict[str, Any]]) -> None:
    """Turn the tensors of steps into numbers, the mean over all ranks, in one transfer."""
    figures = torch.stack([torch.stack((step["loss"].float(), step["grad_norm"].float())) for step in taken])
    if session.ranks > 1:
        dist.all_reduce(figures)
    for step, (loss, norm) in zip(taken, (figures / session.ranks).tolist(), strict=True):
        step["loss"], step["grad_norm"] = loss, norm


@dataclass
class Run:
    """The loop's state between two steps, and how it ended."""

    session: Session
    loader: Loader
    log: MetricsLog
    progress: ReportProgress
    signals: list[int]
    say: Callable[[str], None]
    go_on: bool
    interrupted_by: int = 0
    """The number of the signal that ended it; 0 when none did."""
    off_ramp: str | None = None
    """Why it stopped at a phase's end or over its budget, if it did."""
    taken: list[dict[str, Any]] = field(default_factory=list)
    """Steps whose losses are still on the device."""
    began: float = field(default_factory=time.perf_counter)
    mark: float = field(default_factory=time.perf_counter)
    """When the first of `taken` began."""

    @property
    def seconds(self) -> float:
        """Return the run's time so far, over all its processes."""
        return self.session.seconds + time.perf_counter() - self.began

    @property
    def usd(self) -> float:
        """Return what the run has cost so far."""
        return self.seconds / 3600 * self.session.recipe.cost.gpu_usd_per_hour * self.session.ranks

    def take_steps(self) -> None:
        """Take steps until the end, a signal, or an off-ramp."""
        session, recipe = self.session, self.session.recipe
        if self._is_due(recipe.eval.every_steps) and self.log.last("val_loss").get("step") != session.step:
            self._validate()  # The run was stopped between this step and its validation.
        self.off_ramp = self._close_phase()
        while session.step < recipe.train.steps and not self.interrupted_by and self.off_ramp is None:
            fits = True
            try:
                self.taken.append(take_step(session, self.loader))
            except torch.OutOfMemoryError:
                fits = False
            if not fits:  # Only here: the exception has held what the step had taken.
                raise RunError(_advise_on_memory(session))
            save, validate = (self._is_due(part.every_steps) for part in (recipe.checkpoint, recipe.eval))
            # One process may stop after any step; several agree where they fetch losses, for that waits anyway.
            asked = self.signals and session.ranks == 1
            if not (session.step % recipe.train.log_every == 0 or save or validate or asked):
                continue
            self._settle()
            self.interrupted_by = self._largest(max(self.signals, default=0))
            if save or self.interrupted_by:
                self._save()
            if not self.interrupted_by:
                if validate and self._validate() and not self._is_saved:
                    self._save()  # The best validation so far.
                self.off_ramp = self._close_phase()
            self.mark = time.perf_counter()
        if not self._is_saved:
            self._save()

    @property
    def _is_saved(self) -> bool:
        path = checkpoint_path(self.session.run, self.session.step)
        return self.session.saved is not None and self.session.saved.resolve() == path.resolve()

    def _is_due(self, every_steps: int) -> bool:
        step, recipe = self.session.step, self.session.recipe
        return step > 0 and (step % every_steps == 0 or step == recipe.train.steps or step in recipe.milestones)

    def _largest(self, value: int) -> int:
        """Return the largest value that any rank has."""
        if self.session.ranks == 1:
            return value
        tensor = torch.tensor(value, device=self.session.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor.item())

    def _settle(self) -> None:
        """Fetch, check and log what the last steps found."""
        session, train = self.session, self.session.recipe.train
        fetch_losses(session, self.taken)
        rate = len(self.taken) * train.global_batch * train.seq_len / (time.perf_counter() - self.mark)
        mfu = round(rate / session.peak_tokens_per_s, 4) if session.peak_tokens_per_s else None
        timing = {"ranks": session.ranks, "tokens_per_s": round(rate, 1), "mfu": mfu}
        timing |= {"seconds": round(self.seconds, 3), "usd": round(self.usd, 6)}
        for record in self.taken:
            vocab_size = session.model.vocab_size
            fault = find_fault(record, self.log.records, train, vocab_size, go_on=self.go_on, say=self.say)
            if fault is not None:
                self._fail(record["step"], fault)
            self.log.write(record | timing)
        self.progress(session.step, train.steps, describe_step(self.log.records[-1]))
        self.taken = []

    def _fail(self, step: int, fault: str) -> None:
        session, batch = self.session, self.session.recipe.train.global_batch
        first = (step - 1) * batch
        documents = trace_documents(session.shard_set.splits["train"], session.order, first, min(batch, 8))
        listed = "\n  ".join([*documents, *([f"and {batch - 8} more"] if batch > 8 else [])])
        what = f"The batch was samples [{first}, {first + batch}):\n  {listed}"
        raise RunError(f"step {step}: {fault}. {what}\n{session.describe_saved()}")

    def _save(self) -> None:
        """Save a state that can go on, and keep milestones and the checkpoint with the best validation so far."""
        session, train = self.session, self.session.recipe.train
        windows = self.loader.read(session.samples + session.rank * train.micro_batch, train.micro_batch)
        trial = {"loss": accumulate_gradients(session, windows, 1), "grad_norm": clip_gradients(session, math.inf)}
        for optimizer in session.optimizers:
            optimizer.zero_grad(set_to_none=True)
        fetch_losses(session, [trial])
        if not (math.isfinite(trial["loss"]) and math.isfinite(trial["grad_norm"])):
            what = f"loss {trial['loss']}, gradient norm {trial['grad_norm']}"
            self._fail(session.step, f"the weights after it cannot be trained on: {what}. {REMEDY}")
        self.log.sync()
        saved = {step_of(path) for path in list_checkpoints(self.session.run)}
        losses = {r["step"]: r["val_loss"] for r in self.log.records if "val_loss" in r and r["step"] in saved}
        best = {min(losses, key=losses.__getitem__)} if losses else set[int]()
        self.session.save(seconds=self.seconds, keep_steps=self.session.recipe.milestones | best)

    def _validate(self) -> bool:
        """Validate and log what was found; return whether it is the best so far."""
        session, recipe = self.session, self.session.recipe
        limits = {"max_tokens": recipe.eval.max_tokens, "precision": session.precision}
        sums = evaluate(session.model, session.shard_set, recipe.train, token_bytes=session.token_bytes, **limits)
        found = {"step": session.step, **summarise(sums)}
        best = all(found["val_loss"] < record.get("val_loss", math.inf) for record in self.log.records)
        record: dict[str, Any] = found | {"seconds": round(self.seconds, 3), "usd": round(self.usd, 6)}
        self.log.write(record)
        bits = record["val_bits_per_byte"]
        sources = ", ".join(f"{name} {loss:.3f}" for name, loss in record["val_loss_by_source"].items())
        per_byte = f" ({bits:.3f} bits a byte)" if bits is not None else ""
        self.say(f"step {session.step}  val loss {record['val_loss']:.3f}{per_byte}  {sources}")
        return self._largest(int(best)) > 0  # All ranks save, or none.

    def _close_phase(self) -> str | None:
        """At a phase's end sample and say what it brought; return why to stop here, if there is a reason."""
        session, log, phases, reason = self.session, self.log, self.session.recipe.phases, None
        index = next((i for i, phase in enumerate(phases) if session.step <= phase.until_step), None)
        if index is None or not session.step:
            return None
        phase, began = phases[index], phases[index - 1].until_step if index else 0
        if session.step == phase.until_step:
            # Only here: it reads the whole log. A log that was lost has no row, and its phase no goal.
            rows = make_ledger(phases[: index + 1], log.records)
            if not rows or rows[-1]["phase"] != phase.name:
                self.say(f"phase {phase.name!r}: metrics.jsonl holds no step of it; its goal is not judged")
                return None
            row = rows[-1]
            if log.last("phase").get("step") != session.step:
                log.write({"step": session.step, "phase": row})
                self.say(format_value(row))
                if session.recipe.eval.prompts and isinstance(session.forward, FSDPModule):
                    self.say("no samples here: the weights are split over ranks. Use python -m trainer sample RUN")
                elif session.recipe.eval.prompts and session.rank == 0:
                    self._sample()
            if row["goal_met"] is False:
                missed = f"ended at step {session.step} with loss {row['loss']:.4f}; its goal is {phase.goal}"
                reason = f"phase {phase.name!r} {missed}"
        usd = self.usd - last_value(log.records, "usd", 0.0, until_step=began)
        if phase.budget_usd is not None and usd > phase.budget_usd:
            reason = reason or f"phase {phase.name!r} has cost ${usd:,.2f}; its budget is ${phase.budget_usd:,.2f}"
        # Clocks differ between ranks: what one finds too expensive all stop for.
        if self.go_on or not self._largest(int(reason is not None)):
            return None
        return reason or f"phase {phase.name!r}: another rank found its budget spent"

    def _sample(self) -> None:
        from trainer.commands.sample import LoadedRun, SamplingOptions, sample_texts

        session = self.session
        loaded = LoadedRun(session.model.eval(), session.shard_set.tokenizer(), session.shard_set.eos_id, session.step)
        samples = sample_texts(loaded, session.recipe.eval.prompts, SamplingOptions(max_new_tokens=100))
        (session.run / "samples").mkdir(exist_ok=True)
        text = "\n\n".join(sample.prompt + sample.text for sample in samples) + "\n"
        write_text(session.run / "samples" / f"step-{session.step:08d}.txt", text)


def _advise_on_memory(session: Session) -> str:
    """Try smaller micro-batches, and say which is the next that fits."""
    train, moments = session.recipe.train, list[torch.Tensor]()
    sizes = [size for size in range(1, train.micro_batch) if train.global_batch % size == 0]
    if session.ranks > 1:
        sizes = []  # They would have to try together, and the others are not here.
    while sizes:
        for optimizer in session.optimizers:
            optimizer.zero_grad(set_to_none=True)
        moments.clear()
        with contextlib.suppress(torch.OutOfMemoryError):
            if not session.step:  # The optimizer takes its two moments at the end of the first step.
                moments += [torch.empty_like(weight) for weight in session.model.parameters() for _ in range(2)]
            windows = torch.zeros(sizes[-1], session.order.seq_len + 1, dtype=torch.int64)
            accumulate_gradients(session, windows, 1)
            break
        sizes.pop()
    fits = sizes[-1] if sizes else None
    remedy = f"The next smaller that fits is {fits}" if fits else "Choose a smaller one"
    return (
        f"step {session.step + 1}: train.micro_batch = {train.micro_batch}: out of memory. {remedy}: "
        f"--set train.micro_batch={fits or 'N'}, or train.activation_checkpointing. {session.describe_saved()}"
    )
