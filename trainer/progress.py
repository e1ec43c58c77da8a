"""What the user sees of a run: a bar on a terminal, plain lines elsewhere, tables at the end."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shards.display import plain_table, stdout_console

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


def print_rows(rows: list[dict[str, Any]], *, title: str = "", header: bool = True) -> None:
    """Print a table on stdout: a column for each key, a row for each dict."""
    table = plain_table(*(key.replace("_", " ") for key in rows[0]), right=header)
    table.show_header = header
    for row in rows:
        table.add_row(*map(format_value, row.values()))
    stdout_console().print(*filter(None, (title, table)), sep="\n")


def print_summary(title: str, values: dict[str, Any]) -> None:
    """Print names and values on stdout, those that are not None."""
    rows = [{"name": name.replace("_", " "), "value": value} for name, value in values.items() if value is not None]
    print_rows(rows, title=title, header=False)


def format_value(value: Any) -> str:
    """Return a value as people read it: figures in groups, no more digits than one looks at."""
    if isinstance(value, dict):
        return "  ".join(f"{name} {format_value(part)}" for name, part in value.items())
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:,.{2 if abs(value) >= 100 else 3}f}" if abs(value) >= 1 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
