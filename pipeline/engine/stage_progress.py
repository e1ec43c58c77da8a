"""Progress of a build's stages: notes, and the counters of a stage's tasks, shown by `shards.terminal.progress`."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from shards.errors import plural
from shards.terminal.amounts import format_amount, format_speed
from shards.terminal.display import say
from shards.terminal.progress import Meter, show_progress

POLL_SECONDS = 0.5

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
        # The body counts; a thread shows the counts, so that a call costs nothing but the sums.
        stop, started = threading.Event(), time.perf_counter()
        counts: dict[int, tuple[int, int]] = {}
        sums = (0, 0)

        def advance(number: int, done: int, made: int) -> None:
            nonlocal sums
            before = counts.get(number, (0, 0))
            counts[number] = (done, made)
            sums = (sums[0] + done - before[0], sums[1] + made - before[1])

        def feed(meter: Meter) -> None:
            made_unit, settled = "files" if unit == "files" else "tokens", 0
            while not stop.wait(POLL_SECONDS):
                done, made = sums
                if unit == "files" and not settled:
                    settled = done - made  # rows that an earlier run fetched or that are not wanted: no work
                speed = format_speed(made, time.perf_counter() - started, made_unit)
                # The meter itself shows the speed of bytes.
                meter(done - settled, total - settled, [speed])

        with show_progress(name, unit=unit, show=not self._quiet) as meter:
            thread = threading.Thread(target=feed, args=(meter,), daemon=True)
            thread.start()
            try:
                yield advance
            finally:
                stop.set()
                thread.join()
        # One line stays of the stage.
        done, made = sums
        seconds = time.perf_counter() - started
        work = f"{name}: {plural(tasks, 'task')} in {seconds:.1f} s"
        for counted, count in ({"bytes": done, "tokens": made} if unit == "bytes" else {unit: made}).items():
            speed = format_speed(count, seconds, counted)
            work += f", {format_amount(count, counted)}" if count else ""
            work += f" ({speed})" if speed else ""
        if seconds >= SHOWN_S:
            self.note(work)
