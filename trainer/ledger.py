"""The ledger of a run's phases: what each has cost, and how far the loss fell.

It is a pure function of the metrics' lines.

Dollars are wall-clock time from the first command on, at `[cost] gpu_usd_per_hour` for each rank. Validation, saving
and steps that were taken twice after a crash are included. The stopping rule is dollars per unit of loss, phase after
phase.
"""

from __future__ import annotations

import operator
import statistics

from shards.terminal.display import JsonObject
from trainer.metrics import Record, last_record
from trainer.recipe import PhaseConfig

MEAN_STEPS = 50
"""Training losses are compared as the mean of this many steps, since the loss of a single batch is noise."""

RELATIONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def summarise_phases(phases: list[PhaseConfig], records: list[Record]) -> list[JsonObject]:
    """Return the ledger's row of each phase that has steps in the metrics' lines, which are in order of steps.

    Returns:
        For each the `phase`, its `steps` so far, its `tokens`, `loss` (that of the last validation, or the mean of
        training if there was no validation), `loss_drop` since the phase before it, `usd`, `usd_per_loss` (dollars for
        each nat; None if the loss did not fall), its `goal`, `goal_value` (the loss or
        score that it names) and `goal_met` (both None if the phase has no goal or has not ended, or if the metrics lack
        the score), and `over_budget`.
    """
    rows: list[JsonObject] = []
    for began, phase in zip([0, *(phase.until_step for phase in phases)], phases, strict=False):
        # The lines of the phase, and those before it.
        before = [record for record in records if record["step"] <= began]
        inside = [record for record in records if began < record["step"] <= phase.until_step]
        steps = [record for record in inside if "loss" in record]
        if not steps:
            continue
        last_step = steps[-1]["step"]

        # How far the loss fell, and what that cost.
        loss = _loss(inside, "val_loss")
        loss_drop = (_loss(before, "val_loss") if before else steps[0]["loss"]) - loss
        tokens = steps[-1]["tokens"] - last_record(before, "tokens").get("tokens", 0)
        usd = last_usd(inside) - last_usd(before)

        # A goal is judged at the end of its phase, unless the metrics lack its score.
        goal_value = goal_met = None
        if phase.goal and last_step == phase.until_step:
            key, relation, bound = phase.goal.split()
            if key in ("loss", "val_loss"):
                goal_value = _loss(inside, key)
            else:
                goal_value = last_record(inside, "scores").get("scores", {}).get(key, {}).get("value")
            goal_met = None if goal_value is None else RELATIONS[relation](goal_value, float(bound))
        rows.append(
            {
                "phase": phase.name,
                "steps": last_step - began,
                "tokens": tokens,
                "loss": loss,
                "loss_drop": loss_drop,
                "usd": usd,
                "usd_per_loss": usd / loss_drop if loss_drop > 0 else None,
                "goal": phase.goal,
                "goal_met": goal_met,
                "goal_value": goal_value,
                "over_budget": phase.budget_usd is not None and usd > phase.budget_usd,
            }
        )
    return rows


def last_usd(records: list[Record]) -> float:
    """Return for the ledger what the steps of some lines of the metrics have cost, with all before them."""
    return last_record(records, "usd").get("usd", 0.0)


def _loss(records: list[Record], key: str) -> float:
    """Return a phase's loss for the ledger: the last validation's if `key` asks for it, or the last steps' mean."""
    validation = last_record(records, "val_loss") if key == "val_loss" else {}
    if validation:
        return validation["val_loss"]
    return statistics.fmean([record["loss"] for record in records if "loss" in record][-MEAN_STEPS:])
