"""metrics.jsonl: one JSON line a step, and one after each validation, flushed as they are written.

A run that was killed may have logged steps after its last checkpoint, and half a line. On resume these are removed, so
that the file reads as if the run had never stopped; how many is reported. A checkpoint is never on disk before the
lines that led to it.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from shards.errors import InputError
from shards.stores.files import write_text
from trainer.commands.plot import open_events

METRICS_FILE = "metrics.jsonl"
NUMBERS = ("step", "tokens", "loss", "grad_norm", "lr", "tokens_per_s", "seconds", "usd", "val_loss")
"""What is a number in every line that has it; all have a step."""


class MetricsLog(contextlib.AbstractContextManager["MetricsLog"]):
    """Appends lines to a run's metrics.jsonl.

    Attributes:
        records: every line, about 1 KB of memory each; the ledger and the checks of the loss are computed from them.
        removed: lines after `step` that were removed when the log was opened.
        seconds: the run's time that the lines found tell of, the removed ones included: it was paid for.
    """

    def __init__(self, run: Path, *, step: int, write: bool = True):
        """Open the log of a run that continues after `step`; without `write` (other ranks) the file is only read."""
        path = run / METRICS_FILE
        found = read_metrics(run) if path.exists() else []
        self.records = [record for record in found if record["step"] <= step]
        self.removed = len(path.read_bytes().splitlines()) - len(self.records) if path.exists() else 0
        self.seconds = max((record.get("seconds", 0.0) for record in found), default=0.0)
        if self.removed and write:
            write_text(path, "".join(json.dumps(record) + "\n" for record in self.records))
        self._file = path.open("a", encoding="utf-8") if write else None
        self._events = open_events(run) if write else None

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def last(self, key: str) -> dict[str, Any]:
        """Return the last line that has a key: `loss` those of steps, `val_loss` those of validations; else {}."""
        return next((record for record in reversed(self.records) if key in record), {})

    def write(self, record: dict[str, Any]) -> None:
        """Append one line and flush it."""
        self.records.append(record)
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        if self._events is not None:
            self._events(record)

    def sync(self) -> None:
        """Wait until all lines are on disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())


def copy_metrics(source: Path, run: Path, *, until_step: int) -> None:
    """Begin a run's metrics with another run's lines up to a step, where that has any."""
    if (source / METRICS_FILE).is_file() and not (run / METRICS_FILE).exists():
        lines = [json.dumps(record) for record in read_metrics(source) if record["step"] <= until_step]
        write_text(run / METRICS_FILE, "".join(f"{line}\n" for line in lines))


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return every whole line of a run's metrics, in order; a crash may have cut one off.

    Raises:
        InputError: a line holds something else than metrics.
    """
    records: list[dict[str, Any]] = []
    for number, line in enumerate((run / METRICS_FILE).read_bytes().splitlines(keepends=True), 1):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        fits = isinstance(record, dict) and all(isinstance(record.get(key, 0), int | float) for key in NUMBERS)
        if not fits or "step" not in record:
            expected = f"expected a step, and numbers as {', '.join(NUMBERS)}"
            raise InputError(f"{run / METRICS_FILE}: line {number}: {expected}; got {line!r:.200}. Mend or delete it.")
        if line.endswith(b"\n"):
            records.append(record)
    return records


def describe_step(record: dict[str, Any]) -> str:
    """Return a step's metrics in a few words."""
    words = [f"loss {record['loss']:.3f}", f"lr {record['lr']:.2e}", f"{record['tokens_per_s']:,.0f} tokens/s"]
    words += [f"MFU {record['mfu']:.1%}"] if record["mfu"] is not None else []
    words += [f"${record['usd']:,.2f}"] if record["usd"] else []
    return "  ".join(words)
