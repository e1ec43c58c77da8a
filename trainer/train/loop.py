"""The training loop: take steps; between them log, save, validate, and close the phase, each where it is due.

Exact: with the same recipe, set and machine, a run that was interrupted at any step and resumed has bit-identical
losses to one that never stopped (on the CPU; the same number of threads). Another micro-batch or number of ranks takes
the same windows in the same order; its losses differ by rounding alone. After SIGINT or SIGTERM the
step ends, a checkpoint is saved and the loop stops; a second signal stops it at once.

Nothing waits for the device inside a step: losses stay there and are fetched together every `log_every` steps. Before a
save the weights themselves are tried on a micro-batch of the next windows: those that give a loss or a gradient that is
not finite are never saved.

Steps and validations become lines of metrics.jsonl and of the terminal. A phase that misses its goal, has a pause or
costs more than its budget is an off-ramp: the run stops there, until it is told to go on past that phase.
"""

# pyright: reportUnknownMemberType=false
import bisect
import contextlib
import json
import math
import signal
import threading
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from types import FrameType

import torch
from torch.distributed.fsdp import FSDPModule

from shards.errors import InputError, RunError, shell_command
from shards.stores.files import make_folder, write_text
from shards.terminal.display import format_value
from shards.terminal.progress import Meter
from shards.terminal.reporter import Note, Progress
from shards.torch import TokenWindows
from trainer.checkpoint.folders import checkpoint_path, delete_older, list_checkpoints, step_of_checkpoint
from trainer.device import largest_of_ranks
from trainer.evaluation.evaluate import evaluate
from trainer.evaluation.scores import PERPLEXITY, show_score
from trainer.ledger import last_amount, summarise_phases
from trainer.metrics import MetricsLog, Record, describe_step
from trainer.model.generate import generate_texts
from trainer.run_folder import Gate, read_run_record, sample_file, update_run_record
from trainer.session import Session
from trainer.train.faults import check_weights, find_loss_fault, stop_for_fault
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
    """The loop's state between two steps, and how it ended. Every rank has one, and all do the same."""

    session: Session
    windows: TokenWindows
    log: MetricsLog
    signals: list[int]
    meter: Meter
    """Shows how far it is."""
    say: Note
    go_on: str | None
    """The phase to pass at which the run waits; "" is whichever that is."""
    began: float
    """When this process began, by `time.perf_counter`: fetching the first shard counts, too."""
    interrupted_by: int = 0
    """The number of the signal that ended it; 0 if no signal did."""
    off_ramp: str | None = None
    """Why it stopped at a phase's end or over a phase's budget; None if it did not."""
    waits_at: str | None = None
    """The phase of the off-ramp."""
    passed: list[tuple[str, Gate]] = field(default_factory=list[tuple[str, Gate]])
    """The off-ramps that it was told to pass."""
    taken: list[Record] = field(default_factory=list[Record])
    """Steps whose losses are still on the device."""
    mark: float = field(default_factory=time.perf_counter)
    """When the first of `taken` began."""

    @property
    def seconds(self) -> float:
        """The time so far, over all the run's processes."""
        return self.session.seconds + time.perf_counter() - self.began

    def take_steps(self) -> None:
        """Take steps until the end, a signal, or an off-ramp.

        Raises:
            RunError: memory is too small, or a loss has a fault.
        """
        session, recipe = self.session, self.session.recipe
        # An earlier process may have stopped between this step and its validation or the end of its phase.
        if self._is_due(recipe.eval.every_steps):
            self._validate()
        if session.step in recipe.milestones and not sample_file(session.run, session.step).exists():
            self._sample()
        self.passed = read_run_record(session.run).passed
        self.off_ramp = self._close_phase(self.go_on)

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
                self._report_steps()
                self.interrupted_by = largest_of_ranks(max(self.signals, default=0), session.device)
                if save or self.interrupted_by:
                    self._save()
                if not self.interrupted_by:
                    if validate and self._validate():
                        self._save()
                    if session.step in recipe.milestones:
                        self._sample()
                    self.off_ramp = self._close_phase()
                self.mark = time.perf_counter()
        self._save()

    def _is_due(self, every_steps: int) -> bool:
        step, recipe = self.session.step, self.session.recipe
        return step > 0 and (step % every_steps == 0 or step == recipe.train.steps or step in recipe.milestones)

    def _report_steps(self) -> None:
        """Check and log the losses of the steps taken."""
        session, train = self.session, self.session.recipe.train
        fetch_losses(session, self.taken)
        tokens_per_s = len(self.taken) * train.global_batch * train.seq_len / (time.perf_counter() - self.mark)
        peak = session.peak_tokens_per_s
        throughput = {
            "ranks": session.ranks,
            "tokens_per_s": round(tokens_per_s, 1),
            "mfu": round(tokens_per_s / peak, 4) if peak else None,
            **self._timing(),
        }
        for record in self.taken:
            fault = find_loss_fault(record, self.log.records, train, session.model.vocab_size, self.say)
            if fault is not None:
                stop_for_fault(session, self.windows, record["step"], fault)
            self.log.write({**record, **throughput})
        self.taken = []
        self.meter(session.step, train.steps, describe_step(self.log.records[-1]))

    def _timing(self) -> Record:
        """Return the time and the cost so far, by the slowest rank: all ranks find the same budgets spent."""
        session, log = self.session, self.log
        seconds = largest_of_ranks(round(1000 * self.seconds), session.device) / 1000
        usd = log.usd + (seconds - log.seconds) / 3600 * session.recipe.cost.gpu_usd_per_hour * session.ranks
        return {"seconds": seconds, "usd": round(usd, 6)}

    def _validate(self) -> bool:
        """Validate, log and print the result, unless that is done; return whether it is the best so far."""
        session, recipe, log = self.session, self.session.recipe, self.log
        step, steps = session.step, recipe.train.steps
        if log.last("val_loss").get("step") == step:
            return False

        def show(name: str) -> contextlib.nullcontext[Progress]:
            return contextlib.nullcontext(
                lambda done, all: self.meter(step, steps, [f"scoring {name}: {done:,} of {all:,}"])
            )

        session.model.eval()
        found = evaluate(session.trained, recipe.eval.max_tokens, session.scorers, show)
        best = all(found["val_loss"] < record.get("val_loss", math.inf) for record in log.records)
        log.write({"step": step, **found, **self._timing()})
        losses, bits = found["val_loss_by_source"], found["val_bits_per_byte"]
        shown = {"val loss": found["val_loss"], "perplexity": found[PERPLEXITY], "bits per byte": bits}
        held = session.shard_set.manifest.splits["val"].sources
        beyond = ", ".join(name for name, count in held.items() if count.tokens and name not in losses)
        rest = f"  beyond eval.max_tokens: {beyond}" if beyond else ""
        self.say(f"step {step}  {format_value(shown)}  by source: {format_value(losses)}{rest}")
        if scores := found.get("scores"):
            self.say(f"step {step}  {format_value({name: show_score(**score) for name, score in scores.items()})}")
        return largest_of_ranks(int(best), session.device) > 0  # all ranks save, or none

    def _close_phase(self, go_on: str | None = None) -> str | None:
        """At the end of a phase, report it; return the reason to stop here, or None. `go_on` passes what it names."""
        session, phases = self.session, self.session.recipe.phases
        index = next((i for i, phase in enumerate(phases) if session.step <= phase.until_step), None)
        name, gates = "", dict[Gate, str]()
        if index is not None and session.step:
            name = phases[index].name
            for gate, reason in self._find_gates(index).items():
                if (name, gate) not in self.passed:
                    gates[gate] = reason
                elif gate != "budget":  # of which each report asks
                    self.say(f"passed earlier by --go-on: {reason}")
        if session.recipe.train.rehearsal and "goal" in gates:
            self.say(f"a rehearsal goes on: {gates.pop('goal')}")
        if go_on is not None:
            gates = self._pass_gates(name, gates, go_on)
        self.waits_at = name if gates else None
        return "; ".join(gates.values()) or None

    def _pass_gates(self, name: str, gates: dict[Gate, str], go_on: str) -> dict[Gate, str]:
        """Pass for `--go-on` the gates at which the run waits in a phase; return those that remain.

        Raises:
            InputError: the phase that is to be passed has not stopped the run.
        """
        session, before = self.session, {phase for phase, _ in self.passed}
        # The same command, run again after a crash, passes no gate that nobody has seen.
        if gates and go_on in ("", *({name} - before)):
            self.passed.extend((name, gate) for gate in gates)
            if session.rank == 0:
                update_run_record(session.run, passed=self.passed)
            self.say(f"passed by --go-on: {'; '.join(gates.values())}")
            return {}
        over = {phase.name for phase in session.recipe.phases if phase.until_step <= session.step}
        if not go_on:
            self.say("--go-on passes nothing: no phase has stopped the run here")
        elif go_on in over | before:
            self.say(
                f"--go-on passes nothing: phase {go_on!r} is passed already; without a name it passes what stops now"
            )
        else:
            waits = f"waits at phase {name!r}" if gates else "waits at no phase"
            raise InputError(
                f"--go-on {go_on!r}: this phase has not stopped the run, which is at step {session.step:,} and "
                f"{waits}. Leave --go-on out, or name the phase at which the run stopped."
            )
        return gates

    def _find_gates(self, index: int) -> dict[Gate, str]:
        """Report a phase at its end; return the reasons to stop in it now, passed or not."""
        session, log, phases = self.session, self.log, self.session.recipe.phases
        phase, gates = phases[index], dict[Gate, str]()
        if session.step == phase.until_step:
            # The whole log is read only here.
            rows = summarise_phases(phases[: index + 1], log.records)
            row = rows[-1] if rows and rows[-1]["phase"] == phase.name else Record()
            if row and log.last("phase").get("step") != session.step:  # else an earlier process reported it
                log.write({"step": session.step, "phase": row})
                costs = ("usd", "usd_per_loss", "marginal_usd_per_loss", "over_budget")
                hidden = ("phase", *(() if row["usd"] else costs))
                shown = {key: value for key, value in row.items() if value is not None and key not in hidden}
                self.say(f"phase {row['phase']!r}: {format_value(shown)}")
            if row.get("goal_met") is False:
                value = "unknown, as the loss did not fall" if row["goal_value"] is None else f"{row['goal_value']:.4f}"
                missed = f"ended at step {session.step} with {str(phase.goal).split()[0]} {value}"
                gates["goal"] = f"phase {phase.name!r} {missed}; its goal is {phase.goal}"
            elif phase.goal and row.get("goal_met") is None:
                self.say(f"phase {phase.name!r}: metrics.jsonl has no value for its goal, {phase.goal}: not judged")
            if phase.pause and session.step < session.recipe.train.steps:
                gates["pause"] = f"phase {phase.name!r} ended at step {session.step} and pauses the run"

        if phase.budget_usd is not None and not session.recipe.train.rehearsal:
            # Asked at every report: a long log is not searched from its beginning.
            began = phases[index - 1].until_step if index else 0
            before = log.records[: bisect.bisect_right(log.records, began, key=itemgetter("step"))]
            usd = max(log.usd, last_amount(log.records, "usd")) - last_amount(before, "usd")
            if usd > phase.budget_usd:
                gates["budget"] = f"phase {phase.name!r} has cost ${usd:,.2f}; its budget is ${phase.budget_usd:,.2f}"
        return gates

    def _sample(self) -> None:
        """Continue the prompts of the recipe, into a file of this step."""
        session, config = self.session, self.session.recipe.eval
        file = sample_file(session.run, session.step)
        if config.prompts and isinstance(session.forward, FSDPModule):
            self.say(
                f"no samples: the weights are split over ranks. Run {shell_command('tokenmill', 'sample', session.run)}"
            )
        elif config.prompts and session.rank == 0:
            session.model.eval()
            completions = generate_texts(session.trained, config.prompts, config.samples)
            lines = [json.dumps(asdict(completion), ensure_ascii=False) + "\n" for completion in completions]
            make_folder(file.parent)
            write_text(file, "".join(lines))

    def _save(self) -> None:
        """Save weights that can be trained on, unless that is done; of older ones keep milestones and the best."""
        session, recipe = self.session, self.session.recipe
        path = checkpoint_path(session.run, session.step)
        self.log.sync()  # no checkpoint is on disk, and none is deleted, before the lines that led to it
        if session.saved is None or session.saved.resolve() != path.resolve():
            check_weights(session, self.windows)
            session.save(seconds=self.seconds)
        if session.rank == 0:  # An earlier process may have stopped before it deleted them.
            best = self.log.find_best({step_of_checkpoint(path) for path in list_checkpoints(session.run)})
            delete_older(session.run, keep_last=recipe.checkpoint.keep_last, keep_steps=recipe.milestones | best)
