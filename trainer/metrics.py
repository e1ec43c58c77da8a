"""metrics.jsonl: one JSON line a step, and one after each validation, flushed as they are written.

A run that was killed may have logged steps after its last checkpoint, and half a line. On resume these are removed, so
that the file reads as if the run had never stopped; how many is reported.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from shards.writer import atomic_open

METRICS_FILE = "metrics.jsonl"


class MetricsLog:
    """Appends lines to a run's metrics.jsonl.

    Attributes:
        removed: lines after `step` that were removed when the log was opened.
        last_validation: the last validation line up to `step`, or None.
        last_step: the last step line up to `step`, or None.
    """

    def __init__(self, run: Path, *, step: int):
        """Open the log of a run that continues after `step`."""
        path = run / METRICS_FILE
        kept, self.removed = _read_until(path, step) if path.exists() else ([], 0)
        if self.removed:
            with atomic_open(path) as file:
                file.write("".join(json.dumps(record) + "\n" for record in kept).encode())
        self.last_validation = next((record for record in reversed(kept) if "val_loss" in record), None)
        self.last_step = next((record for record in reversed(kept) if "loss" in record), None)
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._file.close()

    def write(self, record: dict[str, Any]) -> None:
        """Append one line and flush it."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if "val_loss" in record:
            self.last_validation = record
        else:
            self.last_step = record


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return every whole line of a run's metrics, in order."""
    with (run / METRICS_FILE).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def _read_until(path: Path, step: int) -> tuple[list[dict[str, Any]], int]:
    kept: list[dict[str, Any]] = []
    removed = 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        record = _parse_line(line)
        if record is not None and record["step"] <= step:
            kept.append(record)
        else:
            removed += 1
    return kept, removed


def _parse_line(line: str) -> dict[str, Any] | None:
    """Return a whole line's record, or None for what a crash cut off."""
    if not line.endswith("\n"):
        return None
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None
