"""The phases of the set's mix in a run's metrics: where each began and ended, and the losses at its end.

Each step's line has `mix_phases`, the windows of its batch by phase in order, if the set has phases. All here is a pure
function of these lines.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from shards.terminal.program import Row
from trainer.metrics import Record, count_until, last_record
from trainer.phases.ledger import MEAN_STEPS

VALIDATION_KEYS = ("val_loss", "val_bits_per_byte", "val_loss_by_source", "val_bits_per_byte_by_source")


@dataclass(frozen=True)
class Stretch:
    """The steps of one phase of the mix in one epoch, in steps done: of a border in a batch, a part of its step."""

    name: str
    begin: float
    end: float


def list_stretches(records: list[Record]) -> list[Stretch]:
    """Return the stretches of a run, each in one mix phase, in order; none if its set has no phases."""
    stretches: list[Stretch] = []
    for record in records:
        # A batch may hold the end of one phase and the beginning of the next.
        counts: list[tuple[str, int]] = record.get("mix_phases") or []
        batch, done = sum(windows for _, windows in counts), 0
        for name, windows in counts:
            begin = record["step"] - 1 + done / batch
            done += windows
            end = record["step"] - 1 + done / batch
            if stretches and stretches[-1].name == name and stretches[-1].end == begin:
                begin = stretches.pop().begin
            stretches.append(Stretch(name, begin, end))
    return stretches


def summarise_mix(records: list[Record]) -> list[Row]:
    """Summarise the mix phases of a run: return a row for each stretch.

    Returns:
        For each the `mix_phase`, the steps at which it was `from_step` and `to_step` (a step whose batch has windows of
        two phases is in both), the training `loss` at its end (the mean of its last 50 steps, if possible without
        windows of another phase), and the result of the last validation in it, None if there was none.
    """
    rows: list[Row] = []
    for stretch in list_stretches(records):
        # Whole steps around the stretch.
        first, last = int(stretch.begin), math.ceil(stretch.end)
        own = records[count_until(records, first) : count_until(records, last)]
        steps = [record for record in own if record.get("mix_phases")]
        # The loss of a mixed batch is of both phases: left out, if there are others.
        whole = [record for record in steps if len(record["mix_phases"]) == 1] or steps
        validation = last_record(own, "val_loss", until_step=int(stretch.end))
        rows.append(
            {
                "mix_phase": stretch.name,
                "from_step": first + 1,
                "to_step": last,
                "loss": statistics.fmean(record["loss"] for record in whole[-MEAN_STEPS:]),
                **{key: validation.get(key) for key in VALIDATION_KEYS},
            }
        )
    return rows


def describe_borders(record: Record, before: Record) -> Iterator[str]:
    """Yield a line for each phase of the mix that begins in a step.

    Args:
        record: the step's line.
        before: the line of the step before it; {} if there is none.
    """
    counts: list[tuple[str, int]] = record.get("mix_phases") or []
    # The first step of a run has no phase before it.
    earlier: list[tuple[str, int]] = before.get("mix_phases") or counts[:1]
    name, row = earlier[-1][0] if earlier else "", 0
    for begun, windows in counts:
        if begun != name:
            yield f"step {record['step']}: phase {begun!r} of the mix begins, with row {row} of the batch"
        name, row = begun, row + windows
