"""The training loop: take steps; between them log, save, validate, and close the phase, each where it is due.

Exact: with the same recipe, set and machine, a run that was interrupted at any step and resumed has bit-identical
losses to one that never stopped (on the CPU; the same number of threads). Another micro-batch or number of ranks takes
the same windows in the same order; its losses differ by rounding alone. After SIGINT or SIGTERM the
step ends, a checkpoint is saved and the loop stops; a second signal stops it at once.

Nothing waits for the device inside a step: losses stay there and are fetched together every `log_every` steps. Before a
save the weights themselves are tried on a micro-batch of the next windows: those that give a loss or a gradient that is
not finite are never saved.

What a step's figures, a validation or a phase's end lead to is up to the loop's hooks, which `run_training` gives it.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from types import FrameType

import torch

from shards.errors import RunError
from shards.terminal.reporter import Note
from shards.torch import TokenWindows
from trainer.checkpoint.folders import checkpoint_path, list_checkpoints, step_of_checkpoint
from trainer.device import largest_of_ranks
from trainer.metrics import MetricsLog, Record
from trainer.session import Session
from trainer.train.faults import check_weights
from trainer.train.step import fetch_losses, take_step


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
    """The loop's state between two steps, its hooks, and how it ended. Every rank calls each hook."""

    session: Session
    windows: TokenWindows
    log: MetricsLog
    signals: list[int]
    report: Callable[[TrainingLoop, list[Record], float], None]
    """A hook: gets the records of the last steps, and how many seconds these took."""
    validate: Callable[[TrainingLoop], bool]
    """A hook: scores the model, unless that is done; returns whether it is the best so far, and to be saved."""
    close_phase: Callable[[TrainingLoop], str | None]
    """A hook: closes the phase if it ends here; returns the reason to stop here, or None."""
    began: float
    """When this process began, by `time.perf_counter`: fetching the first shard counts, too."""
    interrupted_by: int = 0
    """The number of the signal that ended it; 0 if no signal did."""
    off_ramp: str | None = None
    """Why it stopped at a phase's end or over a phase's budget; None if it did not."""
    taken: list[Record] = field(default_factory=list[Record])
    """Steps whose losses are still on the device."""
    mark: float = field(default_factory=time.perf_counter)
    """When the first of `taken` began."""

    @property
    def seconds(self) -> float:
        """Return the training loop's time so far, over all the run's processes."""
        return self.session.seconds + time.perf_counter() - self.began

    @property
    def usd(self) -> float:
        """Return what the training loop has cost so far."""
        hours = (self.seconds - self.log.seconds) / 3600
        return self.log.usd + hours * self.session.recipe.cost.gpu_usd_per_hour * self.session.ranks

    def take_steps(self) -> None:
        """Take steps of the training loop until the end, a signal, or an off-ramp."""
        session, recipe = self.session, self.session.recipe
        # An earlier process may have stopped between this step and its validation or the end of its phase.
        if self._is_due(recipe.eval.every_steps):
            self.validate(self)
        self.off_ramp = self.close_phase(self)

        while session.step < recipe.train.steps and not self.interrupted_by and self.off_ramp is None:
            try:
                self.taken.append(take_step(session, self.windows))
            except torch.OutOfMemoryError as error:
                raise RunError(
                    f"step {session.step + 1}: train.micro_batch = {recipe.train.micro_batch}: out of memory. Choose a "
                    "smaller one (`tokenmill fit` says what fits), or more train.activation_checkpointing. "
                    f"{session.describe_saved()}"
                ) from error
            save = self._is_due(recipe.checkpoint.every_steps)
            validate = self._is_due(recipe.eval.every_steps)
            # One process may stop after any step. Several agree where they fetch losses, since that waits anyway.
            asked_to_stop = bool(self.signals) and session.ranks == 1
            if session.step % recipe.train.log_every == 0 or save or validate or asked_to_stop:
                self._settle(save=save, validate=validate)
        self._save()

    def _is_due(self, every_steps: int) -> bool:
        step, recipe = self.session.step, self.session.recipe
        return step > 0 and (step % every_steps == 0 or step == recipe.train.steps or step in recipe.milestones)

    def _settle(self, *, save: bool, validate: bool) -> None:
        """Report the loop's steps taken; then save, validate and close the phase if each is due."""
        fetch_losses(self.session, self.taken)
        self.report(self, self.taken, time.perf_counter() - self.mark)
        self.taken = []
        self.interrupted_by = largest_of_ranks(max(self.signals, default=0), self.session.device)
        if save or self.interrupted_by:
            self._save()
        if not self.interrupted_by:
            if validate and self.validate(self):
                self._save()
            self.off_ramp = self.close_phase(self)
        self.mark = time.perf_counter()

    def _save(self) -> None:
        """Save weights in the loop that can be trained on, unless that is done; keep milestones and the best ones."""
        session = self.session
        path = checkpoint_path(session.run, session.step)
        if session.saved is not None and session.saved.resolve() == path.resolve():
            return
        check_weights(session, self.windows)
        self.log.sync()  # no checkpoint is on disk before the lines that led to it
        best = self.log.find_best({step_of_checkpoint(path) for path in list_checkpoints(session.run)})
        session.save(seconds=self.seconds, keep_steps=session.recipe.milestones | best)
