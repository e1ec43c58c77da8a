"""What the user sees of a run: a bar on a terminal, plain lines elsewhere, one table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shards.display import plain_table, stdout_console

PLAIN_SECONDS = 10.0
"""Seconds between lines when stderr is not a terminal."""


def say(message: str) -> None:
    """Print a line for the user on stderr."""
    print(message, file=sys.stderr, flush=True)


class StepProgress:
    """Shows the steps of a run on stderr."""

    def __init__(self, name: str, *, steps: int, done: int):
        """Start after `done` of `steps` steps."""
        self._steps, self._printed = steps, 0.0
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[figures]}"), TimeRemainingColumn(), console=console)
            self._task = self._bar.add_task(name, total=steps, completed=done, figures="")

    def __enter__(self) -> StepProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self._bar is not None:
            self._bar.stop()

    def show_step(self, record: dict[str, Any]) -> None:
        """Show a step's metrics."""
        figures = f"loss {record['loss']:.3f}  lr {record['lr']:.2e}  {record['tokens_per_s']:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=record["step"], figures=figures)
        elif record["step"] in (1, self._steps) or time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            say(f"step {record['step']}/{self._steps}  {figures}")

    def show_line(self, message: str) -> None:
        """Show a line that stays."""
        if self._bar is not None:
            self._bar.console.print(message, highlight=False, markup=False)
        else:
            say(message)


def describe_validation(record: dict[str, Any]) -> str:
    """Return a validation line's figures as text."""
    bits = record["val_bits_per_byte"]
    sources = ", ".join(f"{name} {loss:.3f}" for name, loss in record["val_loss_by_source"].items())
    per_byte = f" ({bits:.3f} bits a byte)" if bits is not None else ""
    return f"step {record['step']}  val loss {record['val_loss']:.3f}{per_byte}  {sources}"


def print_summary(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print a table of names and values on stdout."""
    table = plain_table("", "", right=False)
    table.show_header = False
    for name, value in rows:
        table.add_row(name, value)
    console = stdout_console()
    console.print(title)
    console.print(table)
