"""The ledger of a run's phases: what each has cost and what the loss fell for it. Pure functions of the metrics' lines.

Dollars are wall-clock time from the first command on, validation, saving and steps done twice after a crash included,
at `[cost] gpu_usd_per_hour` for each rank. The stopping rule is dollars per unit of loss, phase after phase.
"""

from __future__ import annotations

import bisect
import operator
import statistics
from typing import Any

from trainer.config import PhaseConfig

MEAN_STEPS = 50
"""Training losses are compared as the mean of so many steps: a single batch's loss is noise."""


def make_ledger(phases: list[PhaseConfig], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each phase that lines are left of, from the metrics' lines in order of steps.

    Returns:
        The `phase` with its `steps` so far; `loss`, the validation's, or the training's mean where none was done;
        `usd_per_loss`, dollars for each unit (nat), None when the loss did not fall; `goal_met`, None when there is no
        goal, or the phase has not ended; and the rest as it is called.
    """
    rows: list[dict[str, Any]] = []
    for began, phase in zip([0, *(phase.until_step for phase in phases)], phases, strict=False):
        start = _end(records, began)
        before, inside = records[:start], records[start : _end(records, phase.until_step)]
        steps = [record for record in inside if "loss" in record]
        if not steps:
            continue
        loss, met = _loss(inside, "val_loss"), None
        drop = (_loss(before, "val_loss") if before else steps[0]["loss"]) - loss
        tokens = steps[-1]["tokens"] - last_value(before, "tokens", 0)
        usd = last_value(inside, "usd", 0.0) - last_value(before, "usd", 0.0)
        if phase.goal and steps[-1]["step"] == phase.until_step:
            key, relation, bound = phase.goal.split()
            met = {"<": operator.lt, "<=": operator.le}[relation](_loss(inside, key), float(bound))
        row = {"phase": phase.name, "steps": steps[-1]["step"] - began, "tokens": tokens, "loss": loss}
        row |= {"loss_drop": drop, "usd": usd, "usd_per_loss": usd / drop if drop > 0 else None}
        row |= {"usd_per_billion_tokens": usd / tokens * 1e9, "goal": phase.goal, "goal_met": met}
        rows.append(row | {"over_budget": phase.budget_usd is not None and usd > phase.budget_usd})
    return rows


def last_value(records: list[dict[str, Any]], key: str, default: Any, *, until_step: int | None = None) -> Any:
    """Return the value of the last line that has a key, of those until a step; quick at the end of a long log."""
    end = _end(records, until_step) if until_step is not None else len(records)
    return next((records[index][key] for index in range(end - 1, -1, -1) if key in records[index]), default)


def _end(records: list[dict[str, Any]], step: int) -> int:
    return bisect.bisect_right(records, step, key=lambda record: record["step"])


def _loss(records: list[dict[str, Any]], key: str) -> float:
    if key == "val_loss" and (value := last_value(records, key, None)) is not None:
        return value
    return statistics.fmean([record["loss"] for record in records if "loss" in record][-MEAN_STEPS:])
