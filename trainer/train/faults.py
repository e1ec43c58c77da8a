"""What stops training: losses that are not finite, spikes, a model that does not learn, weights that cannot go on.

A fault of a step's loss comes with the documents of its batch, by how much each raises the loss: the batch is read once
more, without gradients, by the current weights: those after the step, or a few steps later. Ranks share the forward
passes.
"""

# pyright: reportUnknownMemberType=false
import math
import statistics
from typing import NamedTuple, NoReturn

import torch

from shards.errors import RunError, plural
from shards.format.chat import NO_TARGET
from shards.terminal.reporter import Note
from shards.torch import TokenWindows
from shards.trace.locate import Place, find_window_documents
from trainer.device import add_over_ranks
from trainer.evaluation.eval_sets import measure_labels
from trainer.metrics import Record
from trainer.recipe import TrainConfig
from trainer.session import Session
from trainer.train.step import accumulate_gradients, clip_gradients, fetch_losses

REMEDY = "Lower optimizer.lr or raise schedule.warmup_steps"
_SMOKE = f"{REMEDY}; train.smoke_steps = 0 leaves this test out"
SPIKE_STEPS, SPIKE_LEAST_STEPS = 50, 20
"""A loss is compared with the median of the last 50 steps, once there are 20."""
SMOKE_MEAN_STEPS = 10
"""At the end of the smoke test, the mean of this many steps is compared with the first."""
FAULT_DOCUMENTS = 8
"""Documents of a batch that are named when its loss stops the run."""


def find_loss_fault(
    record: Record,
    earlier: list[Record],
    train: TrainConfig,
    vocab_size: int,
    say: Note,
) -> str | None:
    """Return the fault of a step's loss, with a remedy; None if there is no fault.

    Args:
        record: the step's metrics.
        earlier: the metrics' lines before it.
        train: the settings of the checks.
        vocab_size: gives the loss of guessing.
        say: called with a message if the smoke test is passed.
    """
    step, loss = record["step"], record["loss"]
    if not math.isfinite(loss) or not math.isfinite(record["grad_norm"]):
        return f"loss {loss}, gradient norm {record['grad_norm']}; expected finite numbers. {REMEDY}"

    # 10 lines more than steps: validations and phases have lines too.
    recent = [line["loss"] for line in earlier[-SPIKE_STEPS - 10 :] if "loss" in line][-SPIKE_STEPS:]
    if len(recent) >= SPIKE_LEAST_STEPS:
        usual = statistics.median(recent)
        if loss > usual + train.spike_nats:
            spike = f"loss {loss:.3f}, a spike over the last steps' {usual:.3f}"
            return f"{spike}. {REMEDY}, or raise train.spike_nats to pass it"

    guess = math.log(vocab_size)
    if step == 1 and train.smoke_steps and abs(loss - guess) > 1:
        return f"smoke test: loss {loss:.3f}; expected about ln({vocab_size}) = {guess:.3f}. {_SMOKE}"
    first = next((line for line in earlier if "loss" in line), record)
    if step == train.smoke_steps > 1 and first["step"] == 1:
        mean = statistics.fmean([*recent[-(SMOKE_MEAN_STEPS - 1) :], loss])
        if mean >= first["loss"]:
            return f"smoke test: the loss did not fall, from {first['loss']:.3f} to {mean:.3f}. {_SMOKE}"
        say(f"smoke test passed: loss {first['loss']:.3f} at step 1 (chance: {guess:.3f}), {mean:.3f} at step {step}")
    return None


def check_weights(session: Session, windows: TokenWindows) -> None:
    """Stop training if a micro-batch of the next windows gives a loss or a gradient that is not finite.

    Raises:
        RunError: it does.
    """
    micro_batch = session.recipe.train.micro_batch
    first = session.windows + session.rank * micro_batch
    loss = accumulate_gradients(session, windows.read(range(first, first + micro_batch)), 1)
    trial: Record = {"loss": loss, "grad_norm": clip_gradients(session, math.inf)}
    for optimizer in session.optimizers:
        optimizer.zero_grad(set_to_none=True)
    fetch_losses(session, [trial])
    if not (math.isfinite(trial["loss"]) and math.isfinite(trial["grad_norm"])):
        found = f"loss {trial['loss']}, gradient norm {trial['grad_norm']}"
        stop_for_fault(session, windows, session.step, f"the weights after it cannot be trained on: {found}. {REMEDY}")


def stop_for_fault(session: Session, windows: TokenWindows, step: int, fault: str) -> NoReturn:
    """Stop training because of a step's fault; the message names the documents of its batch, the hardest first."""
    batch = session.recipe.train.global_batch
    first = (step - 1) * batch
    ranked = rank_batch_documents(session, windows, step)
    lines = [str(document) for document in ranked[:FAULT_DOCUMENTS]]
    if len(ranked) > FAULT_DOCUMENTS:
        lines.append(
            f"and {len(ranked) - FAULT_DOCUMENTS} more; their text: tokenmill trace-step {session.run} --step {step}"
        )
    listed = "\n  ".join(lines)
    rows = f"{session.order.unit}s [{first}, {first + batch})"
    raise RunError(
        f"step {step}: {fault}. Its batch was {rows}. The documents that raise its loss most, by the weights after "
        f"step {session.step}:\n  {listed}\n{session.describe_saved()}"
    )


class DocumentLoss(NamedTuple):
    """The part of a document in a row of a batch, and its loss."""

    row: int
    """The row of the global batch, from 0."""
    place: Place
    targets: int
    """How many of the row's targets are tokens of the document."""
    nats: float
    """Their loss, summed."""

    def __str__(self) -> str:
        place, tokens = self.place, plural(self.place.tokens, "token")
        return (
            f"{self.nats / self.targets:.3f} nats per token over {self.targets} of {tokens}: {place.source} "
            f"{place.unit} row {place.row} ({place.shard}, row {self.row} of the batch)"
        )


@torch.no_grad()
def rank_batch_documents(session: Session, windows: TokenWindows, step: int) -> list[DocumentLoss]:
    """Return the documents of a faulty step's batch, those that raise the loss most first; every rank calls it.

    A document raises the loss by its own loss, less what as many tokens have at the batch's usual loss: the median of
    the documents' means. Losses that are not finite come first.

    Raises:
        ShardSetError: a shard is corrupt.
    """
    train, batch = session.recipe.train, session.recipe.train.global_batch
    first = (step - 1) * batch
    # Of each label the loss in nats, and 1 if it counts. Micro-batches in turns: all ranks make equally many passes,
    # which sharded weights need.
    measured = torch.zeros((2, batch, train.seq_len), dtype=torch.float64, device=session.device)
    session.model.eval()
    for row in range(session.rank * train.micro_batch, batch, session.ranks * train.micro_batch):
        sample = windows.read(range(first + row, first + row + train.micro_batch))
        ids, labels = sample["input_ids"], sample["labels"]
        documents = sample.get("document_ids", session.trained.number_documents(ids))
        measured[0, row : row + train.micro_batch] = measure_labels(session.trained, ids, labels, documents)
        measured[1, row : row + train.micro_batch] = (labels != NO_TARGET).to(session.device)
    add_over_ranks(measured)
    losses, counted = measured.cpu().numpy()
    found: list[DocumentLoss] = []
    shards = session.shard_set.splits["train"]
    for row, window, places in find_window_documents(shards, session.order, first, batch):
        for place in places:
            # The first token of a window has nothing before it: it is never a target.
            first_target = window.start + 1
            start, stop = max(place.start, first_target), min(place.start + place.tokens, window.stop)
            slots = slice(start - first_target + window.at, stop - first_target + window.at)
            if targets := int(counted[row, slots].sum()):
                found.append(DocumentLoss(row, place, targets, float(losses[row, slots].sum())))
    means = (own.nats / own.targets for own in found)
    usual = statistics.median([*filter(math.isfinite, means)] or [0.0])

    def rise(own: DocumentLoss) -> float:
        excess = own.nats - own.targets * usual
        return excess if math.isfinite(excess) else math.inf

    return sorted(found, key=rise, reverse=True)
