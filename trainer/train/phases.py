"""The end of a phase in the training loop: its results, its texts, and whether the run stops there, at an off-ramp."""

from __future__ import annotations

from torch.distributed.fsdp import FSDPModule

from shards.stores.files import write_text
from shards.terminal.display import format_value
from shards.terminal.reporter import Note
from trainer.device import largest_of_ranks
from trainer.ledger import summarise_phases
from trainer.metrics import Record, last_record
from trainer.model.generate import SamplingOptions, TrainedModel, generate_texts
from trainer.run_folder import SAMPLES_FOLDER
from trainer.session import Session
from trainer.train.loop import TrainingLoop

SAMPLE_TOKENS = 100
"""Tokens of each text that is drawn at a phase's end."""


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
        if not rows or rows[-1]["phase"] != phase.name:
            say(f"phase {phase.name!r}: metrics.jsonl has no step of it, so its goal is not judged")
            return None
        if log.last("phase").get("step") != session.step:  # else an earlier process reported it
            _report_phase(loop, rows[-1], say)
        if rows[-1]["goal_met"] is False:
            key, value = str(phase.goal).split()[0], rows[-1]["goal_value"]
            missed = f"ended at step {session.step} with {key} {value:.4f}; its goal is {phase.goal}"
            reason = f"phase {phase.name!r} {missed}"
        elif phase.goal and rows[-1]["goal_met"] is None:
            say(f"phase {phase.name!r}: metrics.jsonl lacks the score of its goal, {phase.goal}: not judged")

    began = phases[index - 1].until_step if index else 0
    usd = loop.usd - last_record(log.records, "usd", until_step=began).get("usd", 0.0)
    if reason is None and phase.budget_usd is not None and usd > phase.budget_usd:
        reason = f"phase {phase.name!r} has cost ${usd:,.2f}; its budget is ${phase.budget_usd:,.2f}"
    # Clocks differ between ranks: all stop if one finds the phase too expensive.
    if go_on or not largest_of_ranks(int(reason is not None), session.device):
        return None
    return reason or f"phase {phase.name!r}: another rank found its budget spent"


def _report_phase(loop: TrainingLoop, row: Record, say: Note) -> None:
    """Log and print a phase's results, and sample."""
    session = loop.session
    loop.log.write({"step": session.step, "phase": row})
    say(format_value(row))
    if not session.recipe.eval.prompts:
        return
    if isinstance(session.forward, FSDPModule):
        say(f"no samples: the weights are split over ranks. Run tokenmill sample {session.run}")
    elif session.rank == 0:
        _sample(session)


def _sample(session: Session) -> None:
    """Continue the recipe's prompts at a phase's end and write the texts to the run folder."""
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
