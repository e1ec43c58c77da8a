"""What the training loop reports between steps: its lines of metrics.jsonl, faults of a loss, validations, progress."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator

from shards.terminal.progress import Meter
from shards.terminal.reporter import Note, Progress
from trainer.device import largest_of_ranks
from trainer.evaluation.evaluate import evaluate_scores
from trainer.evaluation.scores import show_score
from trainer.evaluation.validation import evaluate, summarise_evaluation
from trainer.metrics import Record, describe_step
from trainer.train.faults import find_loss_fault, stop_for_fault
from trainer.train.loop import TrainingLoop


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

    @contextlib.contextmanager
    def show_scoring(name: str) -> Generator[Progress]:
        yield lambda done, total: meter(step, steps, [f"{name}: {done:,} of {total:,}"])

    found = summarise_evaluation(evaluate(session.evaluated, session.shard_set, recipe.eval.max_tokens))
    scores = evaluate_scores(session.scorers, session.evaluated, show_scoring)
    best = all(found["val_loss"] < record.get("val_loss", math.inf) for record in log.records)
    log.write({"step": step, **found, **scores, **_timing(loop)})
    bits = found["val_bits_per_byte"]
    per_byte = f" ({bits:.3f} bits per byte)" if bits is not None else ""
    sources = ", ".join(f"{name} {loss:.3f}" for name, loss in found["val_loss_by_source"].items())
    say(f"step {step}  val loss {found['val_loss']:.3f}{per_byte}  {sources}")
    if scores:
        shown = ", ".join(f"{name} {show_score(**score)}" for name, score in scores["scores"].items())
        say(f"step {step}  {shown}")
    return largest_of_ranks(int(best), session.device) > 0  # all ranks save, or none
