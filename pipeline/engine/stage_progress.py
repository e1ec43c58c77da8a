"""Progress of a build's stages: notes, and the counters of a stage's tasks, shown by `shards.terminal.progress`."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from shards.errors import plural
from shards.terminal.amounts import format_amount, format_speed
from shards.terminal.display import say
from shards.terminal.progress import show_progress

SHOWN_S = 0.05
"""No line stays of a shorter stage."""

Advance = Callable[[int, int, int], None]
"""Called with (a task's number, its bytes done, its tokens made) since its last attempt began; the last call counts. Of
a stage that fetches files: its rows done and the files that this run fetched."""


class Progress:
    """Shows stages as they run. `quiet` shows nothing; without `lines`, no line stays."""

    def __init__(self, *, quiet: bool = False, lines: bool = True):
        self._quiet = quiet
        self._lines = lines and not quiet
        self._said: set[str] = set()

    def note(self, message: str) -> None:
        """Print one line for a person, above the progress of the stage."""
        if self._lines:
            say(message)

    def note_once(self, message: str) -> None:
        """Print one line above the progress of the stage, unless it has been printed before."""
        if message not in self._said:
            self._said.add(message)
            self.note(message)

    @contextmanager
    def stage(self, name: str, *, total: int, tasks: int, unit: str) -> Generator[Advance]:
        """Show a stage while the body runs: `total` bytes in `tasks` tasks; rows if `unit` is "files".

        Yields:
            What tells how far a task is. One thread calls it.
        """
        started = time.perf_counter()
        counts: dict[int, tuple[int, int]] = {}
        done = made = 0
        with show_progress(name, unit=unit, show=not self._quiet) as meter:

            def advance(number: int, own_done: int, own_made: int) -> None:
                nonlocal done, made
                before = counts.get(number, (0, 0))
                counts[number] = (own_done, own_made)
                done, made = done + own_done - before[0], made + own_made - before[1]
                speed = format_speed(made, time.perf_counter() - started, "files" if unit == "files" else "tokens")
                # Rows that an earlier run fetched, or that are not wanted, are no work.
                settled = done - made if unit == "files" else 0
                # The meter itself shows the speed of bytes.
                meter(done - settled, total - settled, [speed])

            yield advance
        # One line stays of the stage.
        seconds = time.perf_counter() - started
        work = f"{name}: {plural(tasks, 'task')} in {seconds:.1f} s"
        for counted, count in ({"bytes": done, "tokens": made} if unit == "bytes" else {unit: made}).items():
            speed = format_speed(count, seconds, counted)
            work += f", {format_amount(count, counted)}" if count else ""
            work += f" ({speed})" if speed else ""
        if seconds >= SHOWN_S:
            self.note(work)
