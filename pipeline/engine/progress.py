"""Progress of long work on stderr: a live bar on a terminal, plain lines elsewhere. Results never go through here."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shards.terminal.display import say

if TYPE_CHECKING:
    from rich.console import Console

_BAR_SECONDS = 0.2
_LINE_SECONDS = 10.0
_COUNTING_FILES = frozenset({"fetch"})
"""Stages whose counters are (tasks begun, rows settled, files fetched by this run) and whose total is rows."""

Counters = Callable[[], tuple[int, int, int]]
"""Returns (tasks begun, bytes done, tokens done)."""


class Progress:
    """Shows stages as they run. `quiet` shows nothing."""

    def __init__(self, *, quiet: bool = False):
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._said: set[str] = set()

    def note(self, message: str) -> None:
        """Print one line for a person."""
        if not self._quiet:
            say(message)

    def note_once(self, message: str) -> None:
        """Print one line for a person, unless it has been printed before."""
        if message not in self._said:
            self._said.add(message)
            self.note(message)

    @contextmanager
    def stage(self, name: str, *, total: int, tasks: int, read: Counters) -> Generator[None]:
        """Show a stage while the body runs.

        Args:
            name: the stage.
            total: bytes of work, or rows.
            tasks: how many tasks.
            read: asked a few times a second.
        """
        if self._quiet:
            yield
            return
        stop = threading.Event()
        show = self._show_bar if self._terminal else self._show_lines
        thread = threading.Thread(target=show, args=(name, total, tasks, read, stop), daemon=True)
        thread.start()
        started = time.perf_counter()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        _, done, tokens = read()
        seconds = time.perf_counter() - started
        if name in _COUNTING_FILES:
            work = f", {tokens:,} files ({tokens / seconds:,.0f} files/s)"
        else:
            work = f", {done / 1e6:.0f} MB ({done / seconds / 1e6:.0f} MB/s)" if done else ""
            work += f", {tokens / 1e6:.1f} M tokens ({tokens / seconds / 1e6:.1f} M/s)" if tokens else ""
        self.note(f"{name}: {tasks} {'task' if tasks == 1 else 'tasks'} in {seconds:.1f} s{work}")

    def _show_lines(self, name: str, total: int, tasks: int, read: Counters, stop: threading.Event) -> None:
        started = time.perf_counter()
        before = 0
        while not stop.wait(_LINE_SECONDS):
            begun, done, tokens = read()
            seconds = time.perf_counter() - started
            if name in _COUNTING_FILES and not before:
                before = done - tokens  # settled at once: fetched by an earlier run, or not wanted
            parts = [f"{name}: {begun} of {tasks} tasks begun"]
            if 0 < done < total:  # totals are estimates: past one, neither a share nor the time left is known
                parts = [f"{name}: {100 * done / total:.0f} %"]
            parts += [_speed(name, tokens, seconds)] if tokens else []
            if before < done < total:
                parts.append(f"{seconds * (total - done) / (done - before):.0f} s left")
            self.note(", ".join(parts))

    def _show_bar(self, name: str, total: int, tasks: int, read: Counters, stop: threading.Event) -> None:
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = [
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn() if name in _COUNTING_FILES else DownloadColumn(),
            TextColumn("{task.fields[speed]}"),
        ]
        with Bar(*columns, TimeRemainingColumn(), console=stderr_console(), transient=True) as bar:
            shown = bar.add_task(name, total=total or None, speed="")
            started = time.perf_counter()
            while not stop.wait(_BAR_SECONDS):
                _, done, tokens = read()
                speed = _speed(name, tokens, time.perf_counter() - started) if tokens else ""
                bar.update(shown, completed=done, speed=speed)


def _speed(name: str, count: int, seconds: float) -> str:
    if name in _COUNTING_FILES:
        return f"{count / seconds:,.0f} files/s"
    return f"{count / seconds / 1e6:.1f} M tokens/s"


def stderr_console() -> Console:
    """Return a rich console on stderr."""
    from rich.console import Console

    return Console(stderr=True)
