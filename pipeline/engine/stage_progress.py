"""Progress of a build's stages: notes, and the counters of a stage's tasks, shown by `shards.terminal.progress`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from shards.errors import plural
from shards.terminal.amounts import format_amount, format_speed
from shards.terminal.display import say
from shards.terminal.progress import Meter, show_progress

POLL_SECONDS = 0.5

Counters = Callable[[], tuple[int, int, int]]
"""Returns (tasks begun, bytes done, tokens made), or (tasks begun, rows done, files fetched by this run)."""


class Tally:
    """How far each task of a stage is, and the sums over all. One thread writes; another may read."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[int, int]] = {}
        self._sums = (0, 0, 0)

    def advance(self, number: int, done: int, made: int) -> None:
        """Set how far a task is, by its number: (bytes done, tokens made) since it began."""
        before = self._counts.get(number, (0, 0))
        self._counts[number] = (done, made)
        _, all_done, all_made = self._sums
        self._sums = (len(self._counts), all_done + done - before[0], all_made + made - before[1])

    def read(self) -> tuple[int, int, int]:
        """Return the sums, as `Counters`."""
        return self._sums


class Progress:
    """Shows stages as they run. `quiet` shows nothing."""

    def __init__(self, *, quiet: bool = False):
        self._quiet = quiet
        self._said: set[str] = set()

    def note(self, message: str) -> None:
        """Print one line for a person, above the progress of the stage."""
        if not self._quiet:
            say(message)

    def note_once(self, message: str) -> None:
        """Print one line above the progress of the stage, unless it has been printed before."""
        if message not in self._said:
            self._said.add(message)
            self.note(message)

    @contextmanager
    def stage(self, name: str, *, total: int, tasks: int, read: Counters, unit: str = "bytes") -> Generator[None]:
        """Show a stage while the body runs: `total` bytes in `tasks` tasks, or rows if `unit` is "files"."""
        stop = threading.Event()
        started = time.perf_counter()
        with show_progress(name, unit=unit, show=not self._quiet) as meter:
            thread = threading.Thread(target=_feed, args=(meter, total, tasks, read, stop), daemon=True)
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join()
        _, done, made = read()
        seconds = time.perf_counter() - started
        work = f"{name}: {plural(tasks, 'task')} in {seconds:.1f} s"
        for counted, count in {"files": made}.items() if unit == "files" else {"bytes": done, "tokens": made}.items():
            speed = format_speed(count, seconds, counted)
            work += f", {format_amount(count, counted)}" if count else ""
            work += f" ({speed})" if speed else ""
        self.note(work)


def _feed(meter: Meter, total: int, tasks: int, read: Counters, stop: threading.Event) -> None:
    """Report what the counters say until `stop` is set."""
    started = time.perf_counter()
    made_unit, settled = "files" if meter.unit == "files" else "tokens", 0
    while not stop.wait(POLL_SECONDS):
        begun, done, made = read()
        if meter.unit == "files" and not settled:
            settled = done - made  # rows that an earlier run fetched or that are not wanted: no work
        known = settled < done <= total
        figures = [] if known else [f"{begun} of {plural(tasks, 'task')} begun"]
        meter(done - settled, total - settled, [*figures, format_speed(made, time.perf_counter() - started, made_unit)])
