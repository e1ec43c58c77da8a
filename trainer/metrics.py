"""metrics.jsonl: one JSON line per step, and one after each validation, flushed as they are written.

A killed run may have logged steps after its last checkpoint, and half a line. A resume removes these lines and reports
how many there were, so that the file reads as if the run had never stopped. A checkpoint is never on disk before the
lines that led to it.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from shards.config import check_settings
from shards.errors import InputError
from shards.stores.files import no_follow, read_file, write_text
from shards.stores.parse import load_json
from trainer.recipe.schema import Count

METRICS_FILE = "metrics.jsonl"
MAX_METRICS_BYTES = 1 << 32
"""A larger file is refused before it is read; a step takes about 300 bytes."""

Record = dict[str, Any]
"""One line of metrics.jsonl."""

Amount = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
"""What adds up over a run."""
Known = float | None
"""A number that may not be known."""


class _Score(BaseModel):
    """A score of a line."""

    model_config = ConfigDict(strict=True, extra="forbid")

    value: float
    stderr: Known


class _Line(BaseModel):
    """What the keys of a line are, if it has them."""

    model_config = ConfigDict(strict=True)

    step: Count
    tokens: Amount = 0
    seconds: Amount = 0
    usd: Amount = 0
    tokens_per_s: Amount = 0
    loss: float = 0
    grad_norm: float = 0
    lr: float = 0
    mfu: Known = None
    val_loss: FiniteFloat = 0
    val_loss_by_part: list[float] = []
    val_perplexity: Known = None
    val_bits_per_byte: Known = None
    val_loss_by_source: dict[str, Known] = {}
    val_bits_per_byte_by_source: dict[str, Known] = {}
    scores: dict[str, _Score] = {}
    score_notes: dict[str, Record] = {}
    phase: Record = {}


class MetricsLog:
    """Appends lines to a run's metrics.jsonl.

    Attributes:
        records: every line, about 1 KB of memory each; phases and the checks of the loss are computed from them.
        removed: how many lines after `step` were removed when the log was opened.
        track: called with each line after it is written, if it is set.
        seconds: the run's time so far by the lines found, the removed ones included, since it was paid for.
        usd: what it has cost by then, at the prices that held.
    """

    def __init__(self, run: Path, *, step: int, write: bool = True):
        """Open the metrics of a run that continues after `step`; without `write` (other ranks) they are only read."""
        found, is_cut = read_lines(run)
        # A resumed run forgets the steps that its checkpoint has not seen.
        self.records = [record for record in found if record["step"] <= step]
        self.removed = is_cut + len(found) - len(self.records)
        self.seconds, self.usd = (
            max((record.get(key, 0.0) for record in found), default=0.0) for key in ("seconds", "usd")
        )
        # The file is rewritten before a line is added.
        if self.removed and write:
            _write_lines(run, self.records)
        self._file = open(run / METRICS_FILE, "a", encoding="utf-8", opener=no_follow) if write else None  # noqa: SIM115
        self.track: Callable[[Record], None] | None = None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def last(self, key: str) -> Record:
        """Return the last line with a key: steps have `loss`, validations `val_loss`; {} if none."""
        return last_record(self.records, key)

    def find_best(self, steps: set[int]) -> set[int]:
        """Return which of some steps has the lowest validation loss; none if none has one."""
        losses = {line["step"]: line["val_loss"] for line in self.records if "val_loss" in line}
        return {*sorted(losses.keys() & steps, key=losses.__getitem__)[:1]}

    def write(self, record: Record) -> None:
        """Append one line and flush it."""
        self.records.append(record)
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        if self.track is not None:
            self.track(record)

    def sync(self) -> None:
        """Wait until all lines are on disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())


def read_metrics(run: Path) -> list[Record]:
    """Return the whole lines of a run's metrics: see `read_lines`."""
    return read_lines(run)[0]


def read_lines(run: Path) -> tuple[list[Record], bool]:
    """Return every whole line of a run's metrics, in order, and whether part of another follows: a crash may cut one.

    There are none without the file.

    Raises:
        InputError: a line is not metrics.
        OSError: the file cannot be read.
    """
    path, number = run / METRICS_FILE, 0
    records: list[Record] = []
    lines = read_file(path, MAX_METRICS_BYTES).splitlines(keepends=True) if path.exists() else []
    for number, line in enumerate(lines, 1):
        place = f"{path}: line {number}"
        try:
            record = load_json(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
                continue  # cut off by a crash
            raise InputError(f"{place}: {error}. Repair or delete it.") from error
        check_settings(_Line, record, where=place)
        if records and record["step"] < records[-1]["step"]:
            raise InputError(
                f"{place}: step {record['step']} after step {records[-1]['step']}. Expected steps in their order. "
                "Repair or delete it."
            )
        if line.endswith(b"\n"):
            records.append(record)
    return records, number > len(records)


def copy_metrics(source: Path, run: Path, *, until_step: int) -> None:
    """Begin a run's metrics with another run's lines up to a step; nothing is done if the run has metrics already."""
    if not (run / METRICS_FILE).exists():
        _write_lines(run, [record for record in read_metrics(source) if record["step"] <= until_step])


def _write_lines(run: Path, records: list[Record]) -> None:
    write_text(run / METRICS_FILE, "".join(json.dumps(record) + "\n" for record in records))


def last_record(records: list[Record], key: str) -> Record:
    """Return the last line of the metrics that has a key; {} if none. Quick at the end of a long log."""
    return next((record for record in reversed(records) if key in record), Record())


def describe_step(record: Record) -> list[str]:
    """Return a step's metrics as short texts, the most important first."""
    words = [f"loss {record['loss']:.3f}", f"lr {record['lr']:.2e}", f"{record['tokens_per_s']:,.0f} tokens/s"]
    if record["mfu"] is not None:
        words.append(f"MFU {record['mfu']:.1%}")
    if record["usd"]:
        words.append(f"${record['usd']:,.2f}")
    return words
