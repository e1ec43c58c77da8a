"""The checks of each step's loss: finite numbers, no spike, and at the start that the model learns at all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from trainer.metrics import Record
from trainer.recipe import TrainConfig

REMEDY = "Lower optimizer.lr or raise schedule.warmup_steps"
SPIKE_STEPS, SPIKE_LEAST_STEPS = 50, 20
"""A loss is compared with the median of the last 50 steps, once there are 20."""
SMOKE_MEAN_STEPS = 10
"""At the end of the smoke test, the mean of this many steps is compared with the first."""


def find_loss_fault(
    record: Record,
    earlier: list[Record],
    train: TrainConfig,
    vocab_size: int,
    *,
    go_on: bool,
    say: Callable[[str], None],
) -> str | None:
    """Return the fault of a step's loss, with a remedy; None if there is no fault.

    Args:
        record: the step's metrics.
        earlier: the metrics' lines before it.
        train: the settings of the checks.
        vocab_size: gives the loss of guessing.
        go_on: ignore every fault but numbers that are not finite.
        say: called with a message if the smoke test is passed.
    """
    step, loss = record["step"], record["loss"]
    if not math.isfinite(loss) or not math.isfinite(record["grad_norm"]):
        return f"loss {loss}, gradient norm {record['grad_norm']}; expected finite numbers. {REMEDY}"
    if go_on:
        return None

    # 10 lines more than steps: validations and phases have lines too.
    recent = [line["loss"] for line in earlier[-SPIKE_STEPS - 10 :] if "loss" in line][-SPIKE_STEPS:]
    if len(recent) >= SPIKE_LEAST_STEPS:
        usual = statistics.median(recent)
        if loss > usual + train.spike_nats:
            return f"loss {loss:.3f}, a spike over the last steps' {usual:.3f}. {REMEDY}, or pass it with --go-on"

    guess = math.log(vocab_size)
    if step == 1 and train.smoke_steps and abs(loss - guess) > 1:
        return f"smoke test: loss {loss:.3f}; expected about ln({vocab_size}) = {guess:.3f}. {REMEDY}"
    first = next((line for line in earlier if "loss" in line), record)
    if step == train.smoke_steps > 1 and first["step"] == 1:
        mean = statistics.fmean([*recent[-(SMOKE_MEAN_STEPS - 1) :], loss])
        if mean >= first["loss"]:
            return f"smoke test: the loss did not fall, from {first['loss']:.3f} to {mean:.3f}. {REMEDY}"
        say(f"smoke test passed: loss {first['loss']:.3f} at step 1 (guessing: {guess:.3f}), {mean:.3f} at step {step}")
    return None
