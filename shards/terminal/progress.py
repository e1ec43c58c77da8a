"""Progress of long work on stderr: a bar on a terminal, a plain line every few seconds elsewhere.

`shards.terminal.display.say` prints above the bar. Results never go through here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shards.terminal.amounts import format_amount, format_speed
from shards.terminal.display import printable, say

if TYPE_CHECKING:
    from rich.table import Table

LINE_SECONDS = 5.0
"""Seconds between two lines if stderr is not a terminal."""

_BAR_CELLS = 8
"""Least width of the bar."""


@contextmanager
def show_progress(name: str, *, unit: str = "tokens", before: int = 0, show: bool = True) -> Generator[Meter]:
    """Show the progress of work on stderr while the body runs; nothing without `show`.

    Args:
        name: the work.
        unit: what is counted; bytes and tokens are shown with their speed.
        before: what an earlier run did; speed and time left do not count it.
        show: whether this process shows anything.
    """
    if not (show and sys.stderr.isatty()):
        yield Meter(printable(name), unit, before, prints=show)
        return
    from rich.console import Console
    from rich.live import Live

    meter, console = Meter(printable(name), unit, before), Console(stderr=True)
    with Live(console=console, transient=True, get_renderable=lambda: meter.draw(console.width), refresh_per_second=5):
        yield meter


@dataclass
class Meter:
    """How much of some work is done, and since when."""

    name: str
    unit: str
    before: int = 0
    prints: bool = False
    """Whether a report may print a line."""
    done: int = 0
    total: int = 0
    figures: Sequence[str] = ()
    started: float = field(default_factory=time.monotonic)
    printed: float = field(default_factory=time.monotonic)

    def __call__(self, done: int, total: int, figures: Sequence[str] = ()) -> None:
        """Report how much is done of how much, with short texts about it, the most important first."""
        self.done, self.total, self.figures = done, total, figures
        if self.prints and time.monotonic() - self.printed >= LINE_SECONDS:
            self.printed = time.monotonic()
            share, left, amount, *rest = self.describe()
            say(f"{self.name}: " + ", ".join(filter(None, [amount, share, *rest, left])))

    def describe(self) -> list[str]:
        """Return share, time left, amount, figures and speed, the most important first; empty texts are unknown."""
        seconds, worked = time.monotonic() - self.started, self.done - self.before
        known = 0 < self.total >= self.done  # totals may be estimates: past one, neither share nor time left is known
        share = f"{100 * self.done // self.total} %" if known else ""
        left = format_time_left(seconds * (self.total - self.done) / worked) if known and worked > 0 else ""
        amount = format_amount(self.done, self.unit) if known or self.done else ""
        if known:
            amount = f"{amount.removesuffix(f' {self.unit}')} of {format_amount(self.total, self.unit)}"
        speed = format_speed(worked, seconds, self.unit) if self.unit in ("bytes", "tokens") else ""
        return [share, left, amount, *map(printable, self.figures), speed]

    def draw(self, width: int) -> Table:
        """Return a bar, and the parts of the description that fit a terminal of this width; no part is cut."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        cells: list[Text | ProgressBar] = []
        for number, part in enumerate(map(Text, [self.name, *self.describe()])):
            room = width if number < 4 else width - _BAR_CELLS - 2  # figures leave room for the bar
            if 0 < part.cell_len <= room:
                cells.append(part)
                width -= part.cell_len + 2
        if width >= _BAR_CELLS:
            total = self.total if self.done <= self.total else None
            cells.insert(1, ProgressBar(total or None, self.done, width=min(width, 40)))
        table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        table.add_row(*cells)
        return table


def format_time_left(seconds: float) -> str:
    """Return a time such as `about 3 min left`; an empty text for none."""
    for limit, divisor, unit in ((0, 1, ""), (90, 1, "s"), (90 * 60, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds <= limit:
            return f"about {max(1, round(seconds / divisor))} {unit} left" if unit else ""
    return f"about {round(seconds / 86400)} days left"
