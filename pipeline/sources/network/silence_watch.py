"""Report on stderr when the network is silent: which request waits, why it fails, and how long it is retried.

One thread of each process checks the requests under way twice a second. While any request succeeds it reports nothing:
one slow response among many is normal. A request costs two dictionary operations.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass

from shards.terminal.display import say

SILENT_S = 4.0
"""Seconds without any response after which a line is printed."""

REPEAT_S = 60.0
"""Seconds between two such lines."""

_LOOK_EVERY_S = 0.5


@dataclass(slots=True)
class Waiting:
    """A request under way, with all its attempts. Times are from `time.monotonic`."""

    what: str
    started: float
    give_up_s: float
    attempts: int = 0
    last_error: str = ""

    def describe(self, now: float) -> str:
        """Return the line to print."""
        attempts = f"{self.attempts} failed attempt{'' if self.attempts == 1 else 's'}"
        reason = f"{attempts}, the last one: {self.last_error}" if self.attempts else "the server is silent"
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + self.started + self.give_up_s - now))
        return (
            f"network: {self.what}: no answer for {now - self.started:.0f} s ({reason}). Trying again until {until} "
            f"(--give-up-after {self.give_up_s:.0f}); interrupt to stop, finished work is kept."
        )


class SilenceWatch:
    """Watches the requests under way in this process, and prints a line if none succeeds for a while."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiting] = {}
        self._answered = 0.0
        self._said = 0.0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def wait_for(self, what: str, *, give_up_s: float) -> Generator[Waiting]:
        """Count a request as under way inside the block; it has succeeded if the block ends without an exception."""
        self._start()
        waiting = Waiting(what, time.monotonic(), give_up_s)
        self._waiting[id(waiting)] = waiting
        try:
            yield waiting
            self._answered = time.monotonic()
        finally:
            del self._waiting[id(waiting)]

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_for_ever, name="silence-watch", daemon=True)
                self._thread.start()

    def _look_for_ever(self) -> None:
        while True:
            time.sleep(_LOOK_EVERY_S)
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        oldest = min(list(self._waiting.values()), key=lambda waiting: waiting.started, default=None)
        if oldest is None:
            return
        silent_since = max(oldest.started, self._answered)
        if now - silent_since < SILENT_S:
            return
        if self._said < silent_since or now - self._said >= REPEAT_S:
            self._said = now
            say(oldest.describe(now))


watch = SilenceWatch()
"""The watch of this process."""
