"""The ledger of a run's phases: what each has cost and what the loss fell for it. Pure functions of the metrics' lines.

Dollars are wall-clock time from the first command on, validation, saving and steps done twice after a crash included,
at `[cost] gpu_usd_per_hour` for each rank. The stopping rule is dollars per unit of loss, phase after phase.
"""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from typing import Any

from trainer.config import PhaseConfig

MEAN_STEPS = 50
"""Training losses are compared as the mean of so many steps: a single batch's loss is noise."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One phase so far. A loss is the validation's, or the training's mean where none was done."""

    phase: str
    steps: int
    tokens: int
    loss: float
    loss_drop: float
    usd: float
    usd_per_loss: float | None
    """Dollars for each unit (nat) of loss; None when the loss did not fall."""
    usd_per_billion_tokens: float
    goal: str | None
    goal_met: bool | None
    """None when there is no goal, or the phase has not ended."""
    over_budget: bool


def make_ledger(phases: list[PhaseConfig], records: list[dict[str, Any]]) -> list[LedgerRow]:
    """Return a row for each phase that has begun, from the metrics' lines in order of steps."""
    rows: list[LedgerRow] = []
    began = 0
    for phase in phases:
        before = [record for record in records if record["step"] <= began]
        inside = [record for record in records if began < record["step"] <= phase.until_step]
        steps = [record for record in inside if "loss" in record]
        if not steps:
            break
        first = _loss(before, "val_loss") if before else steps[0]["loss"]
        last, start = _loss(inside, "val_loss"), _last(before, "tokens", 0)
        tokens, usd = _last(inside, "tokens", 0) - start, _last(inside, "usd", 0.0) - _last(before, "usd", 0.0)
        ended = steps[-1]["step"] == phase.until_step
        rows.append(
            LedgerRow(
                phase=phase.name,
                steps=steps[-1]["step"] - began,
                tokens=tokens,
                loss=last,
                loss_drop=first - last,
                usd=usd,
                usd_per_loss=usd / (first - last) if first > last else None,
                usd_per_billion_tokens=usd / tokens * 1e9,
                goal=phase.goal,
                goal_met=_is_met(phase.goal, inside) if phase.goal and ended else None,
                over_budget=phase.budget_usd is not None and usd > phase.budget_usd,
            )
        )
        began = phase.until_step
    return rows


def _last(records: list[dict[str, Any]], key: str, default: Any) -> Any:
    return next((record[key] for record in reversed(records) if key in record), default)


def _loss(records: list[dict[str, Any]], key: str) -> float:
    if key == "val_loss" and (value := _last(records, key, None)) is not None:
        return value
    return statistics.fmean([record["loss"] for record in records if "loss" in record][-MEAN_STEPS:])


def _is_met(goal: str, records: list[dict[str, Any]]) -> bool:
    match = re.fullmatch(r"(\w+) (<=?) ([\d.]+)", goal)
    assert match is not None, goal
    value, bound = _loss(records, match[1]), float(match[3])
    return value < bound or (match[2] == "<=" and value == bound)
