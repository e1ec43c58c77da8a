"""One watcher of all that a process waits for: a reporter is told when nothing has answered for some seconds.

While any request succeeds nothing is told: one slow answer among many is normal. A process without a reporter has no
watcher and prints nothing; the commands report on stderr. A request costs two dictionary operations.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field

from shards.errors import plural
from shards.terminal.reporter import Note

SILENT_S = 4.0
"""Seconds without any answer after which the reporter is told."""

REPEAT_S = 60.0
"""Seconds until it is told again."""

LOOK_EVERY_S = 0.5


@dataclass
class Wait:
    """A request under way with all its attempts, or a wait for another process. Times are from `time.monotonic`."""

    what: str
    give_up_s: float | None
    """Seconds from the start until the last attempt; None for a wait that has no end."""
    started: float = field(default_factory=time.monotonic)
    failures: int = 0
    last_failure: str = ""

    def describe(self, now: float) -> str:
        """Return the sentence for the user."""
        if self.give_up_s is None:
            return f"{self.what}: waiting for {now - self.started:.0f} s"
        reason = "the server is silent"
        if self.failures:
            reason = f"{plural(self.failures, 'failed attempt')}, the last one: {self.last_failure}"
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + self.started + self.give_up_s - now))
        return f"{self.what}: no answer for {now - self.started:.0f} s ({reason}); trying again until {until}"


class Watcher:
    """The waits of this process; one thread looks at all of them while there is a reporter."""

    def __init__(self, reporter: Note | None = None):
        self.reporter = reporter
        self._waits: dict[int, Wait] = {}
        self._answered = 0.0
        self._told = 0.0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def wait_for(self, what: str, give_up_s: float | None = None) -> Generator[Wait]:
        """Watch a wait for the length of a block, which has its answer if the block ends without an exception."""
        if self.reporter is not None:
            self._start()
        wait = Wait(what, give_up_s)
        self._waits[id(wait)] = wait
        try:
            yield wait
            self._answered = time.monotonic()
        finally:
            self._waits.pop(id(wait), None)  # a forked child has forgotten its parent's waits

    def _start(self) -> None:
        with self._lock:
            # The thread has ended if the reporter raised an error.
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._look_for_ever, name="watcher", daemon=True)
                # Without room for a thread the wait is not watched, and a later one tries again.
                with contextlib.suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def _look_for_ever(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Tell the reporter what the process waits for if nothing has been answered for `SILENT_S`."""
        waits = list(self._waits.values())
        oldest = min(waits, key=lambda wait: wait.started, default=None)
        if oldest is None or self.reporter is None:
            return
        silent_since = max(oldest.started, self._answered)
        said_before = self._told >= silent_since
        if now - silent_since >= SILENT_S and (not said_before or now - self._told >= REPEAT_S):
            self._told = now
            # A request may be one of several that a larger one makes: only the inner one knows what failed.
            failed = [wait for wait in waits if wait.failures]
            self.reporter((failed[-1] if failed else oldest).describe(now))


_watcher = Watcher()


def wait_for(what: str, give_up_s: float | None = None) -> contextlib.AbstractContextManager[Wait]:
    """Watch a wait of this process for the length of a block; see `Watcher.wait_for`."""
    return _watcher.wait_for(what, give_up_s)


def report(sentence: str) -> None:
    """Tell this process's reporter something at once, if there is one."""
    if _watcher.reporter is not None:
        _watcher.reporter(sentence)


def report_to(reporter: Note | None) -> Note | None:
    """Let the stores of this process tell a function what they wait for; None for nobody. Return the one before."""
    before, _watcher.reporter = _watcher.reporter, reporter
    return before


def has_reporter() -> bool:
    """Return whether anybody is told what the stores of this process wait for."""
    return _watcher.reporter is not None


def _begin_anew() -> None:
    global _watcher
    _watcher = Watcher(_watcher.reporter)  # a child has none of its parent's threads, and may have its locks


os.register_at_fork(after_in_child=_begin_anew)
