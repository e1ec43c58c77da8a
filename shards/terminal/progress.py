"""Progress of long work on stderr: a line that is kept up to date on a terminal, a new one now and then elsewhere.

`shards.terminal.display.say` prints above the line of a terminal. Results never go through here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from shards.terminal.amounts import format_amount, format_duration, format_speed
from shards.terminal.display import printable, say

LINE_SECONDS = 5.0
MOST_LINE_SECONDS = 60.0
"""Seconds between two lines if stderr is not a terminal: at first, and after four minutes."""


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
    from rich.text import Text

    meter, console = Meter(printable(name), unit, before), Console(stderr=True)

    def draw() -> Text:
        return Text(meter.line(), no_wrap=True, overflow="ellipsis")

    with Live(console=console, transient=True, get_renderable=draw, refresh_per_second=5):
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
        """Report as progress how much is done of how much, with short texts about it, the most important first."""
        self.done, self.total, self.figures = done, total, figures
        now = time.monotonic()
        pause = min(max(LINE_SECONDS, (self.printed - self.started) / 4), MOST_LINE_SECONDS)
        if self.prints and now - self.printed >= pause:
            self.printed = now
            say(self.line())

    def line(self) -> str:
        """Return the name and what is known of share, time left, amount, figures and speed.

        The most important is first, as a terminal may be short.
        """
        seconds, worked = time.monotonic() - self.started, self.done - self.before
        known = 0 < self.total >= self.done  # totals may be estimates: past one, neither share nor time left is known
        share = f"{100 * self.done // self.total}%" if known else ""
        left = ""
        if known and worked > 0 and self.done < self.total:
            left = f"about {format_duration(max(1, seconds * (self.total - self.done) / worked))} left"
        amount = format_amount(self.done, self.unit) if known or self.done else ""
        if known:
            amount = f"{amount.removesuffix(f' {self.unit}')} of {format_amount(self.total, self.unit)}"
        speed = format_speed(worked, seconds, self.unit) if self.unit in ("bytes", "tokens") else ""
        return f"{self.name}: " + ", ".join(filter(None, [share, left, amount, *map(printable, self.figures), speed]))
