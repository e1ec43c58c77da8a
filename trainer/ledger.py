"""The ledger of a run's phases: what each has cost, how far the loss fell, and the bill that they add up to.

It is a pure function of the metrics' lines.

Dollars are the time in which `train` ran, at `[cost] gpu_usd_per_hour` for each rank. The clock runs from the moment
that the model is ready; validation, saving and steps that were taken twice after a crash are included. Starting a
process, and the time between two processes, are not. The stopping rule is dollars per unit of loss, phase after phase.
"""

import operator
import statistics
from collections.abc import Sequence

from shards.terminal.amounts import compact
from shards.terminal.display import JsonObject
from trainer.metrics import Record, last_record
from trainer.recipe.schema import USD_GOALS, PhaseConfig, TrainRecipe

MEAN_STEPS = 50
"""Training losses are compared as the mean of this many steps, since the loss of a single batch is noise."""

RELATIONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def summarise_phases(phases: list[PhaseConfig], records: list[Record]) -> list[JsonObject]:
    """Return the ledger's row of each phase that has steps in the metrics' lines, which are in order of steps.

    Returns:
        For each the `phase`, its `steps` so far, its `tokens`, `hours` and `usd`, `loss` (that of the last validation,
        or the mean of training if there was no validation), `loss_drop` since the phase before it, `usd_per_loss`
        (dollars for each nat; None if the loss did not fall), `marginal_usd_per_loss` (the same between the last two
        validations, or since the first step), its `goal`, `goal_value` (the number that it names) and `goal_met` (both
        None if the phase has no goal or has not ended, or if the metrics lack the score), and `over_budget`.
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
        tokens, seconds, usd = (last_amount(inside, key) - last_amount(before, key) for key in _AMOUNTS)
        points = [(0.0, next(record["loss"] for record in records if "loss" in record))] * 2
        points += [(one.get("usd", 0.0), one["val_loss"]) for one in [*before, *inside] if "val_loss" in one]
        (usd_before, loss_before), (usd_after, loss_after) = points[-2:]
        row: JsonObject = {
            "phase": phase.name,
            "steps": last_step - began,
            "tokens": tokens,
            "hours": seconds / 3600,
            "usd": usd,
            "loss": loss,
            "loss_drop": loss_drop,
            "usd_per_loss": _divide(usd, loss_drop),
            "marginal_usd_per_loss": _divide(usd_after - usd_before, loss_before - loss_after),
        }

        # A goal is judged at the end of its phase, unless the metrics lack its score.
        goal_value = goal_met = None
        if phase.goal and last_step == phase.until_step:
            key, relation, bound = phase.goal.split()
            if key in ("loss", "val_loss"):
                goal_value = _loss(inside, key)
            elif key in USD_GOALS:
                goal_value, goal_met = row[key], False
            else:
                scores = last_record(inside, "scores").get("scores", {})
                goal_value = last_record(inside, key).get(key, scores.get(key, {}).get("value"))
            goal_met = goal_met if goal_value is None else RELATIONS[relation](goal_value, float(bound))
        row |= {"goal": phase.goal, "goal_value": goal_value, "goal_met": goal_met}
        rows.append(row | {"over_budget": phase.budget_usd is not None and usd > phase.budget_usd})
    return rows


_AMOUNTS = ("tokens", "seconds", "usd")
_BILLED = ("steps", "tokens", "hours", "usd", "loss", "usd_per_loss", "marginal_usd_per_loss")


def draw_up_bill(recipe: TrainRecipe, records: list[Record], parameters: int) -> list[JsonObject]:
    """Return the bill of a run: a row for each phase, for steps after the last one, for `cost.other_usd`; the total.

    A run without phases and other costs has none: its total says it all.

    Returns:
        For each row the `item` and, where they are known, what the ledger has of a phase, and `tokens_per_parameter`:
        all tokens until its end. The dollars add up to the total.
    """
    last_step, phases = records[-1]["step"], list(recipe.phases)
    if not phases and not recipe.cost.other_usd:
        return []
    if not phases or phases[-1].until_step < last_step:
        name = "after the phases" if phases else "whole run"
        phases.append(PhaseConfig(name=name, until_step=max(1, last_step)))
    bill = bill_phases(summarise_phases(phases, records))
    tokens = 0
    for row in bill:
        tokens += row["tokens"]
        row["tokens_per_parameter"] = tokens / parameters if parameters else None
    empty = dict.fromkeys((*_BILLED, "tokens_per_parameter"))
    bill += [{"item": name, **empty, "usd": usd} for name, usd in recipe.cost.other_usd.items()]
    total = {key: sum(row[key] or 0 for row in bill) for key in ("steps", "tokens", "hours", "usd")}
    return [*bill, {"item": "total", **empty, **total}]


def bill_phases(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the rows of a bill of phases, by the ledger's rows of them."""
    return [JsonObject(item=row["phase"]) | {key: row[key] for key in _BILLED} for row in rows]


def show_bill(rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the rows of a bill as people read them: with short headers and amounts, without empty columns."""
    keys = [key for key in (rows or [{}])[0] if any(row[key] for row in rows)]
    short = {key: key.replace("usd", "USD").replace("_per_", "/").replace("parameter", "param") for key in keys}
    short["marginal_usd_per_loss"] = "marginal"
    rows = [row | {"tokens": row["tokens"] and compact(row["tokens"])} for row in rows]
    return [{short[key]: row[key] for key in keys} for row in rows]


def last_amount(records: list[Record], key: str) -> float:
    """Return for the ledger what some steps have taken, with all before them: `tokens`, `seconds`, `usd`."""
    return last_record(records, key).get(key, 0)


def _divide(usd: float, drop: float) -> float | None:
    return usd / drop if drop > 0 else None


def _loss(records: list[Record], key: str) -> float:
    """Return a phase's loss for the ledger: the last validation's if `key` asks for it, or the last steps' mean."""
    validation = last_record(records, "val_loss") if key == "val_loss" else {}
    if validation:
        return validation["val_loss"]
    return statistics.fmean([record["loss"] for record in records if "loss" in record][-MEAN_STEPS:])
