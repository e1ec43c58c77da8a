"""What the user sees of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_SECONDS = 10.0
"""Seconds between lines when stderr is not a terminal."""


def say(message: str) -> None:
    """Print a line for the user on stderr; above the bar when there is one."""
    print(message, file=sys.stderr, flush=True)


class StepProgress(Progress):
    """Shows the steps of a run on stderr, as a context manager."""

    def __init__(self, name: str, *, steps: int, done: int, show: bool = True):
        """Start after `done` of `steps` steps; without `show` (other ranks) nothing is shown."""
        console, figures = Console(stderr=True), TextColumn("{task.fields[figures]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), figures, TimeRemainingColumn())
        super().__init__(*columns, console=console, disable=not (show and console.is_terminal))
        self._bar, self._next_line = self.add_task(name, total=steps, completed=done, figures=""), 0.0
        self._steps, self._plain = steps, show and self.disable

    def show_step(self, record: dict[str, Any]) -> None:
        """Show a step's metrics."""
        figures = f"loss {record['loss']:.3f}  lr {record['lr']:.2e}  {record['tokens_per_s']:,.0f} tokens/s"
        if record["mfu"] is not None:
            figures += f"  MFU {record['mfu']:.1%}"
        if record["usd"]:
            figures += f"  ${record['usd']:,.2f}"
        self.update(self._bar, completed=record["step"], figures=figures)
        if self._plain and (time.monotonic() >= self._next_line or record["step"] == self._steps):
            self._next_line = time.monotonic() + PLAIN_SECONDS
            say(f"step {record['step']}/{self._steps}  {figures}")
