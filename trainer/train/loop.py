"""The training loop: read, forward, backward, clip, step; then log, save, validate, and close the phase.

Exact: with the same recipe, set and machine, a run that was interrupted at any step and resumed has bit-identical
losses to one that never stopped (on the CPU; the same number of threads). Another micro-batch or number of ranks takes
the same windows in the same order; its losses differ by rounding alone. After SIGINT or SIGTERM the
step ends, a checkpoint is saved and the loop stops; a second signal stops it at once.

Nothing waits for the device inside a step: losses stay there and are fetched together every `log_every` steps, where
they are checked. Before a save the weights themselves are tried on a micro-batch of the next windows: those that give
a loss or a gradient that is not finite are never saved.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from shards import ShardSetError
from shards.errors import RunError, plural
from shards.stores.cache_store import CacheStore
from shards.stores.files import write_text
from shards.stores.retry import StoreError
from shards.terminal.display import format_value
from shards.terminal.progress import Meter, show_progress
from shards.terminal.reporter import Note, Progress
from shards.torch import TokenWindows
from trainer.checkpoint.folders import checkpoint_path, list_checkpoints, step_of_checkpoint
from trainer.device import wait_for_ranks
from trainer.evaluation.evaluate import evaluate_scores
from trainer.evaluation.scores import show_score
from trainer.evaluation.validation import evaluate, summarise_evaluation
from trainer.ledger import summarise_phases
from trainer.metrics import MetricsLog, Record, describe_step, last_record
from trainer.model.decoder import count_parameters
from trainer.model.generate import SamplingOptions, TrainedModel, generate_texts
from trainer.run_folder import SAMPLES_FOLDER
from trainer.session import Session
from trainer.train.faults import REMEDY, describe_out_of_memory, find_loss_fault, rank_batch_documents
from trainer.train.step import accumulate_gradients, clip_gradients, fetch_losses, open_training_windows, take_step
from trainer.train.trackers import open_trackers

FAULT_DOCUMENTS = 8
"""Documents of a batch that are named when its loss stops the run."""
SAMPLE_TOKENS = 100
"""Tokens of each text that is drawn at a phase's end."""


def run_training(session: Session, say: Note, *, go_on: bool = False, progress: bool = False) -> TrainingLoop:
    """Train until the recipe's last step, an off-ramp, or until asked to stop.

    Args:
        session: the run.
        say: called with each line the user should know.
        go_on: ignore off-ramps, a failed smoke test and spikes of the loss.
        progress: show on stderr how far it is.

    Returns:
        The loop as it ended: after the last step, interrupted, or at an off-ramp.

    Raises:
        RunError: the loss is not finite or rises suddenly, memory is too small, the data cannot be read, or metrics or
            a checkpoint cannot be written. Earlier checkpoints are whole; the message names the last one.
        InputError: a line of the run's metrics.jsonl is not metrics, or the first shard cannot be fetched.
    """
    recipe = session.recipe
    first_rank = session.rank == 0
    parameters = count_parameters(recipe.model, session.model.vocab_size)
    where = f"{session.ranks} x {session.device.type}" if session.ranks > 1 else str(session.device)
    say(
        f"{plural(parameters, 'parameter')} on {where} in {session.precision}, "
        f"{plural(torch.get_num_threads(), 'thread')}"
    )
    began = time.perf_counter()
    _fetch_first_shard(session, progress=progress)
    # The weights after the last step are tried with the batch that would follow.
    stop = session.windows + (recipe.train.steps - session.step + 1) * recipe.train.global_batch
    try:
        with (
            MetricsLog(session.run, step=session.step, write=first_rank) as log,
            open_training_windows(session.shard_set, recipe.train, stop=stop) as windows,
            show_progress(recipe.name, unit="steps", before=session.step, show=progress and first_rank) as meter,
            catch_signals(say) as signals,
            contextlib.ExitStack() as opened,
        ):
            wait_for_ranks()  # Every rank has read the log before one adds to it.
            session.seconds = max(session.seconds, log.seconds)
            if log.removed:
                say(
                    f"metrics.jsonl: removed {plural(log.removed, 'line')} after step {session.step}; these are done "
                    "again"
                )
            before = log.last("score_notes").get("score_notes", {})
            for scorer in session.scorers:
                if before.get(scorer.name, scorer.notes).get("sha256") != scorer.notes["sha256"]:
                    say(f"{scorer.name}: scored on other text than before; its scores do not compare with those")
            if first_rank:
                log.track = opened.enter_context(open_trackers(session.run, recipe, log.records, say))
            loop = TrainingLoop(session, windows, log, meter, signals, say, go_on, began=began)
            loop.take_steps()
            return loop
    except (ShardSetError, StoreError, OSError) as error:
        raise RunError(f"{error}\nStopped after step {session.step}. {session.describe_saved()}") from error


def _fetch_first_shard(session: Session, *, progress: bool) -> None:
    """Before the loop, fetch the shard of the next step from a remote store, and show how far that is.

    Raises:
        InputError: it cannot be fetched, or its bytes are not what the manifest says.
        OSError: the cache cannot be written to.
    """
    store = session.shard_set.store
    if not isinstance(store, CacheStore) or session.step >= session.recipe.train.steps:
        return
    shard = session.shard_set.splits["train"][session.order.visit(session.windows).shard]
    with contextlib.ExitStack() as shown:

        def show(done: int, total: int) -> None:  # only the rank that fetches has something to show
            nonlocal meter
            meter = meter or shown.enter_context(show_progress(f"fetch {shard.name}", unit="bytes", show=progress))
            meter(done, total)

        meter: Meter | None = None
        with store.hold(shard.tokens_file.name, progress=show):
            pass


@contextlib.contextmanager
def catch_signals(say: Note) -> Generator[list[int]]:
    """Put the first SIGINT or SIGTERM into a list, at which the loop ends; a second one is handled as before."""
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        previous.close()
        say(f"{signal.Signals(number).name}: finishing the step, then saving; send it again to stop at once")

    with contextlib.ExitStack() as previous:
        # Only the main thread may handle signals.
        own = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM) if own else ():
            previous.callback(signal.signal, number, signal.signal(number, receive))
        yield received


@dataclass
class TrainingLoop:
    """The loop's state between two steps, and how it ended."""

    session: Session
    windows: TokenWindows
    log: MetricsLog
    progress: Meter
    signals: list[int]
    say: Note
    go_on: bool
    interrupted_by: int = 0
    """The number of the signal that ended it; 0 if no signal did."""
    off_ramp: str | None = None
    """Why it stopped at a phase's end or over a phase's budget; None if it did not."""
    taken: list[Record] = field(default_factory=list[Record])
    """Steps whose losses are still on the device."""
    began: float = field(default_factory=time.perf_counter)
    mark: float = field(default_factory=time.perf_counter)
    """When the first of `taken` began."""

    @property
    def seconds(self) -> float:
        """Return the training loop's time so far, over all the run's processes."""
        return self.session.seconds + time.perf_counter() - self.began

    @property
    def usd(self) -> float:
        """Return what the training loop has cost so far."""
        return self.seconds / 3600 * self.session.recipe.cost.gpu_usd_per_hour * self.session.ranks

    def take_steps(self) -> None:
        """Take steps of the training loop until the end, a signal, or an off-ramp."""
        session, recipe = self.session, self.session.recipe
        # An earlier process may have stopped between this step and its validation or the end of its phase.
        if self._is_due(recipe.eval.every_steps) and self.log.last("val_loss").get("step") != session.step:
            self._validate()
        self.off_ramp = self._close_phase()

        while session.step < recipe.train.steps and not self.interrupted_by and self.off_ramp is None:
            self._take_step()
            save = self._is_due(recipe.checkpoint.every_steps)
            validate = self._is_due(recipe.eval.every_steps)
            # One process may stop after any step. Several agree where they fetch losses, since that waits anyway.
            asked_to_stop = bool(self.signals) and session.ranks == 1
            if session.step % recipe.train.log_every == 0 or save or validate or asked_to_stop:
                self._settle(save=save, validate=validate)
        if not self._is_saved:
            self._save()

    def _take_step(self) -> None:
        with contextlib.suppress(torch.OutOfMemoryError):
            self.taken.append(take_step(self.session, self.windows))
            return
        # Only here is the memory of the failed step free: its exception kept it alive.
        raise RunError(describe_out_of_memory(self.session))

    def _settle(self, *, save: bool, validate: bool) -> None:
        """Log the loop's steps taken; then save, validate and close the phase if each is due."""
        self._log_steps()
        self.interrupted_by = self._largest(max(self.signals, default=0))
        if save or self.interrupted_by:
            self._save()
        if not self.interrupted_by:
            if validate and self._validate() and not self._is_saved:
                self._save()  # the best validation so far
            self.off_ramp = self._close_phase()
        self.mark = time.perf_counter()

    @property
    def _is_saved(self) -> bool:
        path = checkpoint_path(self.session.run, self.session.step)
        return self.session.saved is not None and self.session.saved.resolve() == path.resolve()

    def _is_due(self, every_steps: int) -> bool:
        step, recipe = self.session.step, self.session.recipe
        return step > 0 and (step % every_steps == 0 or step == recipe.train.steps or step in recipe.milestones)

    def _largest(self, value: int) -> int:
        """Return the largest value that the training loop has on any rank."""
        if self.session.ranks == 1:
            return value
        tensor = torch.tensor(value, device=self.session.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor.item())

    def _timing(self) -> dict[str, float]:
        return {"seconds": round(self.seconds, 3), "usd": round(self.usd, 6)}

    def _log_steps(self) -> None:
        """Fetch, check and log the losses of the loop's steps."""
        session, train = self.session, self.session.recipe.train
        fetch_losses(session, self.taken)
        elapsed = time.perf_counter() - self.mark
        tokens_per_s = len(self.taken) * train.global_batch * train.seq_len / elapsed
        peak = session.peak_tokens_per_s
        throughput = {
            "ranks": session.ranks,
            "tokens_per_s": round(tokens_per_s, 1),
            "mfu": round(tokens_per_s / peak, 4) if peak else None,
            **self._timing(),
        }
        for record in self.taken:
            vocab_size = session.model.vocab_size
            fault = find_loss_fault(record, self.log.records, train, vocab_size, go_on=self.go_on, say=self.say)
            if fault is not None:
                self._fail(record["step"], fault)
            self.log.write({**record, **throughput})
        self.progress(session.step, train.steps, describe_step(self.log.records[-1]))
        self.taken = []

    def _fail(self, step: int, fault: str) -> NoReturn:
        """Stop the loop because of a step's fault; the message names the documents of its batch, the hardest first."""
        session, batch = self.session, self.session.recipe.train.global_batch
        first = (step - 1) * batch
        ranked = rank_batch_documents(session, self.windows, step)
        lines = [str(document) for document in ranked[:FAULT_DOCUMENTS]]
        if len(ranked) > FAULT_DOCUMENTS:
            command = f"tokenmill trace-step {session.run} --step {step}"
            lines.append(f"and {len(ranked) - FAULT_DOCUMENTS} more; their text: {command}")
        listed = "\n  ".join(lines)
        about = (
            f"Its batch was windows [{first}, {first + batch}). The documents that raise its loss most, by the weights"
        )
        raise RunError(
            f"step {step}: {fault}. {about} after step {session.step}:\n  {listed}\n{session.describe_saved()}"
        )

    def _save(self) -> None:
        """Save weights in the loop that can be trained on; keep milestones and the best checkpoint by validation."""
        self._try_weights()
        self.log.sync()
        saved = {step_of_checkpoint(path) for path in list_checkpoints(self.session.run)}
        losses: dict[int, float] = {
            record["step"]: record["val_loss"]
            for record in self.log.records
            if "val_loss" in record and record["step"] in saved
        }
        keep_steps = set(self.session.recipe.milestones)
        if losses:
            keep_steps.add(min(losses, key=losses.__getitem__))
        self.session.save(seconds=self.seconds, keep_steps=keep_steps)

    def _try_weights(self) -> None:
        """Fail the loop if a micro-batch of the next windows gives a loss or a gradient that is not finite."""
        session, micro_batch = self.session, self.session.recipe.train.micro_batch
        first = session.windows + session.rank * micro_batch
        batch = self.windows.read(range(first, first + micro_batch))
        loss = accumulate_gradients(session, batch, 1)
        trial: Record = {"loss": loss, "grad_norm": clip_gradients(session, math.inf)}
        for optimizer in session.optimizers:
            optimizer.zero_grad(set_to_none=True)
        fetch_losses(session, [trial])
        if not (math.isfinite(trial["loss"]) and math.isfinite(trial["grad_norm"])):
            found = f"loss {trial['loss']}, gradient norm {trial['grad_norm']}"
            self._fail(session.step, f"the weights after it cannot be trained on: {found}. {REMEDY}")

    def _validate(self) -> bool:
        """Validate in the loop, log and print the result; return whether it is the best so far."""
        session, recipe = self.session, self.session.recipe
        sums = evaluate(session.evaluated, session.shard_set, recipe.eval.max_tokens)
        found = summarise_evaluation(sums)
        scores = evaluate_scores(session.scorers, session.evaluated, self._show_scoring)
        best = all(found["val_loss"] < record.get("val_loss", math.inf) for record in self.log.records)
        self.log.write({"step": session.step, **found, **scores, **self._timing()})
        bits = found["val_bits_per_byte"]
        per_byte = f" ({bits:.3f} bits per byte)" if bits is not None else ""
        sources = ", ".join(f"{name} {loss:.3f}" for name, loss in found["val_loss_by_source"].items())
        self.say(f"step {session.step}  val loss {found['val_loss']:.3f}{per_byte}  {sources}")
        if scores:
            shown = ", ".join(f"{name} {show_score(**score)}" for name, score in scores["scores"].items())
            self.say(f"step {session.step}  {shown}")
        return self._largest(int(best)) > 0  # all ranks save, or none

    @contextlib.contextmanager
    def _show_scoring(self, name: str) -> Generator[Progress]:
        """Show next to the loop's steps how far the scoring of an eval set or task is."""
        step, steps = self.session.step, self.session.recipe.train.steps
        yield lambda done, total: self.progress(step, steps, [f"{name}: {done:,} of {total:,}"])

    def _close_phase(self) -> str | None:
        """At the end of the loop's phase, report its results and sample; return the reason to stop here, or None."""
        session, phases = self.session, self.session.recipe.phases
        index = next((i for i, phase in enumerate(phases) if session.step <= phase.until_step), None)
        if index is None or not session.step:
            return None
        phase = phases[index]
        reason = None
        if session.step == phase.until_step:
            # The whole log is read only here.
            rows = summarise_phases(phases[: index + 1], self.log.records)
            if not rows or rows[-1]["phase"] != phase.name:
                self.say(f"phase {phase.name!r}: metrics.jsonl has no step of it, so its goal is not judged")
                return None
            self._report_phase(rows[-1])
            if rows[-1]["goal_met"] is False:
                key, value = str(phase.goal).split()[0], rows[-1]["goal_value"]
                missed = f"ended at step {session.step} with {key} {value:.4f}; its goal is {phase.goal}"
                reason = f"phase {phase.name!r} {missed}"
            elif phase.goal and rows[-1]["goal_met"] is None:
                self.say(f"phase {phase.name!r}: metrics.jsonl lacks the score of its goal, {phase.goal}: not judged")

        began = phases[index - 1].until_step if index else 0
        usd = self.usd - last_record(self.log.records, "usd", until_step=began).get("usd", 0.0)
        if reason is None and phase.budget_usd is not None and usd > phase.budget_usd:
            reason = f"phase {phase.name!r} has cost ${usd:,.2f}; its budget is ${phase.budget_usd:,.2f}"
        # Clocks differ between ranks: all stop if one finds the phase too expensive.
        if self.go_on or not self._largest(int(reason is not None)):
            return None
        return reason or f"phase {phase.name!r}: another rank found its budget spent"

    def _report_phase(self, row: Record) -> None:
        """Log and print in the loop a phase's results, and sample, unless an earlier process did so."""
        session = self.session
        if self.log.last("phase").get("step") == session.step:
            return
        self.log.write({"step": session.step, "phase": row})
        self.say(format_value(row))
        if not session.recipe.eval.prompts:
            return
        if isinstance(session.forward, FSDPModule):
            self.say(f"no samples: the weights are split over ranks. Run tokenmill sample {session.run}")
        elif session.rank == 0:
            self._sample()

    def _sample(self) -> None:
        """Continue the recipe's prompts in the loop and write the texts to the run folder."""
        session = self.session
        tokenizer = session.shard_set.tokenizer()
        trained = TrainedModel(
            session.model.eval(), tokenizer, session.shard_set.eos_id, session.step, session.shard_set.bos_id
        )
        options = SamplingOptions(max_new_tokens=SAMPLE_TOKENS)
        completions = generate_texts(trained, session.recipe.eval.prompts, options)
        folder = session.run / SAMPLES_FOLDER
        folder.mkdir(exist_ok=True)
        text = "\n\n".join(completion.prompt + completion.text for completion in completions) + "\n"
        write_text(folder / f"step-{session.step:08d}.txt", text)
