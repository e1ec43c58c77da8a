"""What the user sees of a run: a bar on a terminal, plain lines elsewhere, one table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shards.display import plain_table, stdout_console

if TYPE_CHECKING:
    from trainer.ledger import LedgerRow

PLAIN_SECONDS = 10.0
"""Seconds between lines when stderr is not a terminal."""


def say(message: str) -> None:
    """Print a line for the user on stderr."""
    print(message, file=sys.stderr, flush=True)


class StepProgress:
    """Shows the steps of a run on stderr."""

    def __init__(self, name: str, *, steps: int, done: int, show: bool = True):
        """Start after `done` of `steps` steps; without `show` (other ranks) nothing is shown."""
        self._steps, self._printed, self._show = steps, 0.0, show
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if show and console.is_terminal:
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
        if record["mfu"] is not None:
            figures += f"  MFU {record['mfu']:.1%}"
        if record["usd"]:
            figures += f"  ${record['usd']:,.2f}"
        if self._bar is not None:
            self._bar.update(self._task, completed=record["step"], figures=figures)
        elif not self._printed or record["step"] == self._steps or time.monotonic() - self._printed >= PLAIN_SECONDS:
            self._printed = time.monotonic()
            self.show_line(f"step {record['step']}/{self._steps}  {figures}")

    def show_line(self, message: str) -> None:
        """Show a line that stays."""
        if self._bar is not None:
            self._bar.console.print(message, highlight=False, markup=False)
        elif self._show:
            say(message)


def describe_validation(record: dict[str, Any]) -> str:
    """Return a validation line's figures as text."""
    bits = record["val_bits_per_byte"]
    sources = ", ".join(f"{name} {loss:.3f}" for name, loss in record["val_loss_by_source"].items())
    per_byte = f" ({bits:.3f} bits a byte)" if bits is not None else ""
    return f"step {record['step']}  val loss {record['val_loss']:.3f}{per_byte}  {sources}"


def describe_phase(row: LedgerRow) -> str:
    """Return a phase's line of the ledger as text."""
    each = (
        f"${row.usd_per_loss:,.4g} for each unit of loss" if row.usd_per_loss is not None else "the loss did not fall"
    )
    goal = f"; goal {row.goal}: {'met' if row.goal_met else 'missed'}" if row.goal else ""
    return f"phase {row.phase!r}: loss {row.loss:.3f}, {row.loss_drop:+.3f} lower, ${row.usd:,.2f}, {each}{goal}"


def print_ledger(rows: list[LedgerRow]) -> None:
    """Print the phases' table on stdout."""
    headings = ("steps", "tokens", "loss", "loss drop", "$", "$ / unit of loss", "$ / B tokens", "goal")
    table = plain_table("phase", *headings)
    for row in rows:
        met = {None: "", True: "met", False: "missed"}[row.goal_met]
        table.add_row(
            row.phase,
            f"{row.steps:,}",
            f"{row.tokens:,}",
            f"{row.loss:.3f}",
            f"{row.loss_drop:.3f}",
            f"{row.usd:,.4g}",
            f"{row.usd_per_loss:,.4g}" if row.usd_per_loss is not None else "-",
            f"{row.usd_per_billion_tokens:,.4g}",
            f"{row.goal or ''} {met}".strip(),
        )
    stdout_console().print(table)


def print_summary(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print a table of names and values on stdout."""
    table = plain_table("", "", right=False)
    table.show_header = False
    for name, value in rows:
        table.add_row(name, value)
    console = stdout_console()
    console.print(title)
    console.print(table)
