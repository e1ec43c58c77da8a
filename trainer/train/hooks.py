"""The hooks of the training loop: what follows a step, a validation and the end of a phase.

Steps and validations become lines of metrics.jsonl and of the terminal. A phase that misses its goal, or costs more
than its budget, is an off-ramp: the run stops there.
"""

from __future__ import annotations

import bisect
import contextlib
import math
from operator import itemgetter

from torch.distributed.fsdp import FSDPModule

from shards.stores.files import write_text
from shards.terminal.display import format_value
from shards.terminal.progress import Meter
from shards.terminal.reporter import Note, Progress
from trainer.device import largest_of_ranks
from trainer.evaluation.evaluate import evaluate_scores
from trainer.evaluation.scores import show_score
from trainer.evaluation.validation import evaluate
from trainer.ledger import last_usd, summarise_phases
from trainer.metrics import Record, describe_step
from trainer.model.generate import SamplingOptions, generate_texts
from trainer.run_folder import SAMPLES_FOLDER
from trainer.train.faults import find_loss_fault, stop_for_fault
from trainer.train.loop import TrainingLoop

SAMPLE_TOKENS = 100
"""Tokens of each text that is drawn at a phase's end."""


def report_steps(
    loop: TrainingLoop, taken: list[Record], seconds: float, *, meter: Meter, say: Note, go_on: bool
) -> None:
    """Check and log the losses of the loop's last steps, which took some seconds, and show how far it is.

    Raises:
        RunError: a loss has a fault, which `go_on` does not pass.
    """
    session, train = loop.session, loop.session.recipe.train
    tokens_per_s = len(taken) * train.global_batch * train.seq_len / seconds
    peak = session.peak_tokens_per_s
    throughput = {
        "ranks": session.ranks,
        "tokens_per_s": round(tokens_per_s, 1),
        "mfu": round(tokens_per_s / peak, 4) if peak else None,
        **_timing(loop),
    }
    for record in taken:
        fault = find_loss_fault(record, loop.log.records, train, session.model.vocab_size, go_on=go_on, say=say)
        if fault is not None:
            stop_for_fault(session, loop.windows, record["step"], fault)
        loop.log.write({**record, **throughput})
    meter(session.step, train.steps, describe_step(loop.log.records[-1]))


def _timing(loop: TrainingLoop) -> dict[str, float]:
    return {"seconds": round(loop.seconds, 3), "usd": round(loop.usd, 6)}


def validate(loop: TrainingLoop, *, meter: Meter, say: Note) -> bool:
    """Validate in the loop, log and print the result, unless that is done; return whether it is the best so far."""
    session, recipe, log = loop.session, loop.session.recipe, loop.log
    step, steps = session.step, recipe.train.steps
    if log.last("val_loss").get("step") == step:
        return False

    def show_scoring(name: str) -> contextlib.nullcontext[Progress]:
        return contextlib.nullcontext(lambda done, all: meter(step, steps, [f"scoring {name}: {done:,} of {all:,}"]))

    session.model.eval()
    found = evaluate(session.evaluated, session.shard_set, recipe.eval.max_tokens)
    scores = evaluate_scores(session.scorers, session.evaluated, show_scoring)
    best = all(found["val_loss"] < record.get("val_loss", math.inf) for record in log.records)
    log.write({"step": step, **found, **scores, **_timing(loop)})
    bits = found["val_bits_per_byte"]
    per_byte = f" ({bits:.3f} bits per byte)" if bits is not None else ""
    losses = found["val_loss_by_source"]
    sources = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
    held = session.shard_set.manifest.splits["val"].sources
    beyond = ", ".join(name for name, count in held.items() if count.tokens and name not in losses)
    rest = f"  beyond eval.max_tokens: {beyond}" if beyond else ""
    say(f"step {step}  val loss {found['val_loss']:.3f}{per_byte}  {sources}{rest}")
    if scores:
        shown = ", ".join(f"{name} {show_score(**score)}" for name, score in scores["scores"].items())
        say(f"step {step}  {shown}")
    return largest_of_ranks(int(best), session.device) > 0  # all ranks save, or none


def close_phase(loop: TrainingLoop, *, say: Note, go_on: bool) -> str | None:
    """At the end of the loop's phase, report its results and sample; return the reason to stop here, or None."""
    session, phases, log = loop.session, loop.session.recipe.phases, loop.log
    index = next((i for i, phase in enumerate(phases) if session.step <= phase.until_step), None)
    if index is None or not session.step:
        return None
    phase = phases[index]
    reason = None
    if session.step == phase.until_step:
        # The whole log is read only here.
        rows = summarise_phases(phases[: index + 1], log.records)
        row = rows[-1] if rows and rows[-1]["phase"] == phase.name else Record()
        if row and log.last("phase").get("step") != session.step:  # else an earlier process reported it
            _report_phase(loop, row, say)
        if row.get("goal_met") is False:
            key, value = str(phase.goal).split()[0], row["goal_value"]
            missed = f"ended at step {session.step} with {key} {value:.4f}; its goal is {phase.goal}"
            reason = f"phase {phase.name!r} {missed}"
        elif phase.goal and row.get("goal_met") is None:
            say(f"phase {phase.name!r}: metrics.jsonl has no value for its goal, {phase.goal}: not judged")

    began = phases[index - 1].until_step if index else 0
    if reason is None and phase.budget_usd is not None:
        # Asked at every report: a long log is not searched from its beginning.
        before = log.records[: bisect.bisect_right(log.records, began, key=itemgetter("step"))]
        usd = loop.usd - last_usd(before)
        if usd > phase.budget_usd:
            reason = f"phase {phase.name!r} has cost ${usd:,.2f}; its budget is ${phase.budget_usd:,.2f}"
    # Clocks differ between ranks: all stop if one finds the phase too expensive.
    if go_on or not largest_of_ranks(int(reason is not None), session.device):
        return None
    return reason or f"phase {phase.name!r}: another rank found its budget spent"


def _report_phase(loop: TrainingLoop, row: Record, say: Note) -> None:
    """Log and print a phase's results, and sample."""
    session = loop.session
    loop.log.write({"step": session.step, "phase": row})
    left_out = ("phase",) if loop.usd else ("phase", "usd", "usd_per_loss", "over_budget")
    shown = {key: value for key, value in row.items() if value is not None and key not in left_out}
    say(f"phase {row['phase']!r}: {format_value(shown)}")
    if not session.recipe.eval.prompts:
        return
    if isinstance(session.forward, FSDPModule):
        say(f"no samples: the weights are split over ranks. Run tokenmill sample {session.run}")
    elif session.rank == 0:
        session.model.eval()
        options = SamplingOptions(max_new_tokens=SAMPLE_TOKENS)
        completions = generate_texts(session.trained, session.recipe.eval.prompts, options)
        folder = session.run / SAMPLES_FOLDER
        folder.mkdir(exist_ok=True)
        text = "\n\n".join(completion.prompt + completion.text for completion in completions) + "\n"
        write_text(folder / f"step-{session.step:08d}.txt", text)
