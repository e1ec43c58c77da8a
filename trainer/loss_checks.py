"""What each step's loss is checked for: finite numbers, spikes, and at the start that the model learns at all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

from trainer.config import TrainConfig

REMEDY = "Lower optimizer.lr or raise schedule.warmup_steps"


def find_fault(
    record: dict[str, Any],
    earlier: list[dict[str, Any]],
    train: TrainConfig,
    vocab_size: int,
    *,
    go_on: bool,
    say: Callable[[str], None],
) -> str | None:
    """Return what is wrong with a step's loss and what to do; None when nothing is.

    Args:
        record: the step's metrics.
        earlier: the metrics' lines before it.
        train: the settings that decide what counts as wrong.
        vocab_size: decides the loss of guessing.
        go_on: pass all but numbers that are not finite.
        say: told when the smoke test is passed.
    """
    step, loss, guess = record["step"], record["loss"], math.log(vocab_size)
    if not math.isfinite(loss) or not math.isfinite(record["grad_norm"]):
        return f"loss {loss}, gradient norm {record['grad_norm']}; expected finite numbers. {REMEDY}"
    if go_on:
        return None
    recent = [line["loss"] for line in earlier[-60:] if "loss" in line][-50:]
    if len(recent) >= 20 and loss > (usual := statistics.median(recent)) + train.spike_nats:
        return f"loss {loss:.3f}, a spike over the last steps' {usual:.3f}. {REMEDY}, or pass it with --go-on"
    if step == 1 and train.smoke_steps and abs(loss - guess) > 1:
        return f"smoke test: loss {loss:.3f}; expected about ln({vocab_size}) = {guess:.3f}. {REMEDY}"
    first = next((line for line in earlier if "loss" in line), record)
    if step == train.smoke_steps > 1 and first["step"] == 1:
        mean = statistics.fmean([*recent[-9:], loss])
        if mean >= first["loss"]:
            return f"smoke test: the loss did not fall, from {first['loss']:.3f} to {mean:.3f}. {REMEDY}"
        say(f"smoke test passed: loss {first['loss']:.3f} at step 1 (guessing: {guess:.3f}), {mean:.3f} at step {step}")
    return None
