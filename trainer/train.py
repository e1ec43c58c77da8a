"""The training loop: read, forward, backward, clip, step; then log, save, validate, and close the phase.

Exact: with the same recipe, set and machine, a run that was interrupted at any step and resumed has bit-identical
losses to one that never stopped (on the CPU; the same number of threads). Another micro-batch or number of ranks takes
the same samples in the same order; its losses differ by rounding alone. SIGINT and SIGTERM let the step end, save a
checkpoint and leave; a second one stops at once.

Nothing waits for the device inside a step: losses stay there and are fetched together every `log_every` steps, where
they are checked. What was not checked is never saved, so a checkpoint always holds a good state.
"""

from __future__ import annotations

import contextlib
import math
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import FrameType, TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from shards import ShardSetError
from shards.samples import trace_documents
from shards.writer import write_text
from trainer.checkpoint import checkpoint_path, list_checkpoints, step_of
from trainer.data import Loader
from trainer.device import autocast
from trainer.errors import RunError
from trainer.evaluate import evaluate
from trainer.ledger import LedgerRow, make_ledger
from trainer.metrics import MetricsLog
from trainer.model import count_parameters, label_documents
from trainer.optim import learning_rate
from trainer.progress import StepProgress, describe_phase, describe_validation
from trainer.session import Session, open_metrics

OFF_RAMP = 1 << 20
"""Beyond the numbers of signals: what the ranks agree on to stop at an off-ramp."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: every step done, the number of the signal that ended it, or why it took an off-ramp."""

    session: Session
    seconds: float
    interrupted_by: int | None
    off_ramp: str | None
    last_step: dict[str, Any]
    last_validation: dict[str, Any]
    ledger: list[LedgerRow]


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


def run_training(session: Session, say: Callable[[str], None], *, go_on: bool = False) -> Outcome:
    """Train until the recipe's last step, an off-ramp, or until asked to stop.

    Args:
        session: the run.
        say: called with each line the user should know.
        go_on: pass off-ramps, a failed smoke test and spikes of the loss.

    Raises:
        RunError: the loss is not finite or rises suddenly, memory is too small, or the data cannot be read; says what
            is left and how to go on.
        OSError: metrics or a checkpoint cannot be written; earlier checkpoints are whole.
    """
    recipe = session.recipe
    parameters = count_parameters(recipe.model, session.model.vocab_size)
    where = f"{session.ranks} x {session.device.type}" if session.ranks > 1 else str(session.device)
    say(f"{parameters:,} parameters on {where} in {session.precision}, {torch.get_num_threads()} threads")
    last_sample = session.samples + (recipe.train.steps - session.step) * recipe.train.global_batch
    try:
        with (
            open_metrics(session, say) as log,
            Loader(session.shard_set.splits["train"], session.order, stop=last_sample) as loader,
            StepProgress(recipe.name, steps=recipe.train.steps, done=session.step, show=session.rank == 0) as progress,
            StopRequest(progress.show_line) as stop,
        ):
            run = _Run(session, loader, log, progress, stop, go_on=go_on)
            off_ramp = run.take_steps()
            ledger = make_ledger(recipe.phases, log.records)
            return Outcome(
                session, run.seconds, run.stopped_by, off_ramp, log.last("loss"), log.last("val_loss"), ledger
            )
    except ShardSetError as error:
        raise RunError(f"{error}\nStopped after step {session.step}. {_describe_saved(session)}") from error


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
        last = index == rounds - 1
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        alone = isinstance(model, DistributedDataParallel) and not last
        with cast(DistributedDataParallel, model).no_sync() if alone else contextlib.nullcontext():
            total += accumulate_gradients(session, windows, rounds)
    grad_norm = torch.nn.utils.clip_grad_norm_(session.model.parameters(), session.recipe.optimizer.grad_clip)
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
        "grad_norm": grad_norm.full_tensor() if isinstance(grad_norm, DTensor) else grad_norm,
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


def fetch_losses(session: Session, taken: list[dict[str, Any]]) -> None:
    """Turn the tensors of steps into numbers, the mean over all ranks, in one transfer."""
    figures = torch.stack([torch.stack((step["loss"].float(), step["grad_norm"].float())) for step in taken])
    if session.ranks > 1:
        dist.all_reduce(figures)
    for step, (loss, norm) in zip(taken, (figures / session.ranks).tolist(), strict=True):
        step["loss"], step["grad_norm"] = loss, norm


class _Run:
    """The loop's state between two steps."""

    def __init__(
        self,
        session: Session,
        loader: Loader,
        log: MetricsLog,
        progress: StepProgress,
        stop: StopRequest,
        *,
        go_on: bool,
    ):
        self.session, self.recipe, self.loader, self.log = session, session.recipe, loader, log
        self.progress, self.stop, self.go_on = progress, stop, go_on
        self.stopped_by: int | None = None
        self.began = self.mark = time.perf_counter()
        self.taken: list[dict[str, Any]] = []
        self.phase_began = (-1, 0.0)
        """The last step of the phase before the current one, and the dollars spent until then."""

    @property
    def usd(self) -> float:
        """Return what the run has cost so far."""
        return self.seconds / 3600 * self.recipe.cost.gpu_usd_per_hour * self.session.ranks

    @property
    def seconds(self) -> float:
        """Return the run's time so far, over all its processes."""
        return self.session.seconds + time.perf_counter() - self.began

    def take_steps(self) -> str | None:
        """Take steps until the end, a signal, or an off-ramp, whose reason is returned."""
        session, train = self.session, self.recipe.train
        if self._is_due(self.recipe.eval.every_steps) and self.log.last("val_loss").get("step") != session.step:
            self._validate()  # The run was stopped between this step and its validation.
        off_ramp = self._close_phase()
        while session.step < train.steps and self.stopped_by is None and off_ramp is None:
            try:
                self.taken.append(take_step(session, self.loader))
            except torch.OutOfMemoryError as error:
                raise RunError(_advise_on_memory(session)) from error
            due_save = self._is_due(self.recipe.checkpoint.every_steps)
            due_validation = self._is_due(self.recipe.eval.every_steps)
            # One process may stop after any step; several agree where they fetch losses, for that waits anyway.
            asked = self.stop.signal is not None and session.ranks == 1
            if not (session.step % train.log_every == 0 or due_save or due_validation or asked):
                continue
            self._settle()
            self._agree()
            if due_save or self.stopped_by is not None:
                self._save()
            if due_validation and self.stopped_by is None:
                self._validate()
            off_ramp = self._close_phase() if self.stopped_by is None else None
            self.mark = time.perf_counter()
        if session.saved is None or session.saved.resolve() != checkpoint_path(session.run, session.step).resolve():
            self._save()
        return off_ramp

    def _is_due(self, every_steps: int) -> bool:
        step = self.session.step
        return step > 0 and (
            step % every_steps == 0 or step == self.recipe.train.steps or step in self.recipe.milestones
        )

    def _settle(self) -> None:
        """Fetch, log and check what the last steps found."""
        fetch_losses(self.session, self.taken)
        session, train = self.session, self.recipe.train
        rate = len(self.taken) * train.global_batch * train.seq_len / (time.perf_counter() - self.mark)
        mfu = rate * session.flops_per_token / session.peak_flops if session.peak_flops else None
        timing = {
            "tokens_per_s": round(rate, 1),
            "mfu": round(mfu, 4) if mfu is not None else None,
            "seconds": round(self.seconds, 3),
            "usd": round(self.usd, 6),
        }
        for record in self.taken:
            self._check_loss(record)
            self.log.write(record | timing)
        self.progress.show_step(self.log.records[-1])
        self.taken = []

    def _check_loss(self, record: dict[str, Any]) -> None:
        """Stop where the loss is not finite or jumps; early on, where it is not that of guessing or does not fall."""
        train, vocab_size, fault = self.recipe.train, self.session.model.vocab_size, None
        step, loss = record["step"], record["loss"]
        first = next((r for r in self.log.records if "loss" in r), record)
        recent = [r["loss"] for r in self.log.records[-60:] if "loss" in r][-50:]
        remedy = "Lower optimizer.lr or raise schedule.warmup_steps."
        if not math.isfinite(loss) or not math.isfinite(record["grad_norm"]):
            fault = f"loss {loss}, gradient norm {record['grad_norm']}; expected finite numbers"
        elif self.go_on:
            return
        elif len(recent) >= 20 and loss > statistics.median(recent) + train.spike_nats:
            fault = f"loss {loss:.3f}, a spike over the last steps' {statistics.median(recent):.3f}"
            remedy += " Or pass it with --go-on."
        elif step == 1 and train.smoke_steps and loss > math.log(vocab_size) + 1:
            fault = f"smoke test: loss {loss:.3f}; expected about ln({vocab_size}) = {math.log(vocab_size):.3f}"
        elif step == train.smoke_steps and first["step"] == 1:
            mean = statistics.fmean([*recent[-9:], loss])
            if mean >= first["loss"]:
                fault = f"smoke test: the loss did not fall, from {first['loss']:.3f} to {mean:.3f}"
            else:
                guess = f"{first['loss']:.3f} (guessing: {math.log(vocab_size):.3f})"
                self.progress.show_line(f"smoke test passed: loss {guess} at step 1, {mean:.3f} at step {step}")
        if fault is not None:
            batch = train.global_batch
            samples = (step - 1) * batch
            documents = trace_documents(self.session.shard_set.splits["train"], self.session.order, samples, batch)
            listed = "\n  ".join([*documents[:8], *([f"and {batch - 8} more"] if batch > 8 else [])])
            raise RunError(
                f"step {step}: {fault}. The batch was samples [{samples}, {samples + batch}):\n  {listed}\n"
                f"{remedy} {_describe_saved(self.session)}"
            )

    def _agree(self) -> None:
        """Let every rank know of a signal that one received."""
        self.stopped_by = self._largest(self.stop.signal or 0) or None

    def _largest(self, value: int) -> int:
        if self.session.ranks == 1:
            return value
        tensor = torch.tensor(value, device=self.session.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor.item())

    def _save(self) -> None:
        """Save, and keep milestones and the checkpoint with the best validation so far."""
        saved = {step_of(path) for path in list_checkpoints(self.session.run)}
        losses = {r["step"]: r["val_loss"] for r in self.log.records if "val_loss" in r and r["step"] in saved}
        best = {min(losses, key=losses.__getitem__)} if losses else set[int]()
        self.session.save(seconds=self.seconds, keep_steps=self.recipe.milestones | best)

    def _validate(self) -> None:
        session = self.session
        validation = evaluate(
            session.model,
            session.shard_set,
            seq_len=self.recipe.train.seq_len,
            max_tokens=self.recipe.eval.max_tokens,
            batch=self.recipe.train.micro_batch,
            precision=session.precision,
            token_bytes=session.token_bytes,
            document_mask=self.recipe.train.document_mask,
        )
        record = {"step": session.step, **validation.to_metrics()}
        self.log.write(record)
        self.progress.show_line(describe_validation(record))

    def _close_phase(self) -> str | None:
        """At a phase's end sample and say what it brought; return why to stop here, if there is a reason."""
        session, log, phases, reason = self.session, self.log, self.recipe.phases, None
        index = next((i for i, phase in enumerate(phases) if session.step <= phase.until_step), None)
        if index is None or not session.step:
            return None
        phase, began = phases[index], phases[index - 1].until_step if index else 0
        if self.phase_began[0] != began:
            usd = max((r["usd"] for r in log.records if "usd" in r and r["step"] <= began), default=0.0)
            self.phase_began = began, usd
        if session.step == phase.until_step:
            row = make_ledger(phases, log.records)[index]  # Only here: it reads the whole log.
            if log.last("phase").get("step") != session.step:
                log.write({"step": session.step, "phase": asdict(row)})
                self.progress.show_line(describe_phase(row))
                if self.recipe.eval.prompts and session.rank == 0 and not isinstance(session.forward, FSDPModule):
                    self._sample()
            if row.goal_met is False:
                missed = f"ended at step {session.step} with loss {row.loss:.4f}; its goal is {row.goal}"
                reason = f"phase {phase.name!r} {missed}"
        usd = self.usd - self.phase_began[1]
        if phase.budget_usd is not None and usd > phase.budget_usd:
            reason = reason or f"phase {phase.name!r} has cost ${usd:,.2f}; its budget is ${phase.budget_usd:,.2f}"
        # Clocks differ between ranks: what one finds too expensive all stop for.
        if self.go_on or not self._largest(OFF_RAMP if reason is not None else 0):
            return None
        return reason or f"phase {phase.name!r}: another rank found its budget spent"

    def _sample(self) -> None:
        from trainer.sample import LoadedRun, SampleOptions, sample_texts

        session = self.session
        loaded = LoadedRun(session.model.eval(), session.shard_set.tokenizer(), session.shard_set.eos_id, session.step)
        samples = sample_texts(loaded, self.recipe.eval.prompts, SampleOptions(max_new_tokens=100))
        (session.run / "samples").mkdir(exist_ok=True)
        text = "\n\n".join(sample.prompt + sample.text for sample in samples) + "\n"
        write_text(session.run / "samples" / f"step-{session.step:08d}.txt", text)


def _advise_on_memory(session: Session) -> str:
    """Try smaller micro-batches, and say which is the next that fits."""
    train = session.recipe.train
    fits = None
    for size in range(train.micro_batch - 1, 0, -1):
        if session.ranks > 1 or train.global_batch % size:
            continue  # The other ranks are not there to answer.
        for optimizer in session.optimizers:
            optimizer.zero_grad(set_to_none=True)
        with contextlib.suppress(torch.OutOfMemoryError):
            accumulate_gradients(session, torch.zeros(size, train.seq_len + 1, dtype=torch.int64), 1)
            fits = size
            break
    remedy = f"The next smaller that fits is {fits}" if fits else "Choose a smaller one"
    return (
        f"step {session.step + 1}: train.micro_batch = {train.micro_batch}: out of memory. {remedy}: "
        f"--set train.micro_batch={fits or 'N'}, or train.activation_checkpointing. {_describe_saved(session)}"
    )


def _describe_saved(session: Session) -> str:
    if session.saved is None:
        return "No checkpoint had been written."
    return f"The last checkpoint is {session.saved}; --resume auto goes on from there."
