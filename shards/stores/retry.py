"""Retry requests whose failure may pass: one policy for every request over a network.

Pauses grow, with full jitter, unless the server says how long to wait; after `give_up_s` seconds without success the
last failure is final, or sooner if the failure itself says so. The user sees within five seconds that there is no
answer, or what has failed and until when it is retried.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import TypeVar

from shards.errors import InputError

Result = TypeVar("Result")

TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of failures that may pass."""

GIVE_UP_S = 600.0
"""How long a request is retried without success."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0

SLOW_S = 4.0
"""A first attempt that takes longer is reported while it runs, because a connection that hangs fails after minutes."""

NOTE_EVERY_S = 30.0
"""The minimum time between two reports of one request."""


class TransientError(InputError):
    """A failure that may pass: a broken connection, a time-out, a body cut short, HTTP 429 or 5xx."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, give_up_s: float | None = None):
        """Keep the message.

        Args:
            message: what has failed.
            retry_after_s: seconds that the server asks to wait.
            give_up_s: seconds after the first attempt at which this failure is final, if that is sooner than the
                policy's or the caller's bound: it is probably no failure that passes.
        """
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.give_up_s = give_up_s


class StoppedError(InputError):
    """A request is not made again, because the process has no more use for its answer."""


_stop: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


@contextlib.contextmanager
def stop_on(event: threading.Event) -> Generator[None]:
    """Let every `retry` that this thread calls in the body raise `StoppedError` once `event` is set."""
    token = _stop.set(event)
    try:
        yield
    finally:
        _stop.reset(token)


def retry(
    what: str,
    attempt: Callable[[], Result],
    *,
    error_type: Callable[[str], Exception],
    give_up_s: float | None = None,
    note: Callable[[str], None] | None = None,
    sleep: Callable[[float], object] | None = None,
    on_failure: Callable[[], None] | None = None,
) -> Result:
    """Call `attempt` until it succeeds or the time is up, and return its result.

    Args:
        what: the request, as the messages name it.
        attempt: raises `TransientError` for a failure that may pass; any other error is final. It may run many times.
        error_type: makes the error of the last failure from its message.
        give_up_s: seconds after the first attempt; `GIVE_UP_S` when None. A failure may have a smaller bound.
        note: called with a sentence for the user when the first attempt fails or has no answer after `SLOW_S`, and then
            at most every `NOTE_EVERY_S` seconds. Another thread may call it.
        sleep: waits that many seconds; `time.sleep` when None, or a wait that `stop_on` ends.
        on_failure: called after each failure that may pass, to count them.

    Raises:
        Exception: the error that `error_type` makes when the time is up, or a final error of `attempt`.
        StoppedError: the event of `stop_on` is set.
    """
    stop = _stop.get()
    sleep = sleep or (stop.wait if stop else time.sleep)
    bound = GIVE_UP_S if give_up_s is None else give_up_s
    started = time.monotonic()
    reporter = _Reporter(what, note)
    attempts = 0
    while True:
        attempts += 1
        if stop is not None and stop.is_set():
            raise StoppedError(f"{what}: not requested: stopped")
        try:
            with reporter.watch() if attempts == 1 else contextlib.nullcontext():
                return attempt()
        except TransientError as error:
            if on_failure is not None:
                on_failure()
            # Full jitter: many workers that failed together do not come back together.
            ceiling = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempts, 16))
            pause = random.uniform(0, ceiling) if error.retry_after_s is None else error.retry_after_s
            spent = time.monotonic() - started
            last = bound if error.give_up_s is None else min(bound, error.give_up_s)
            if spent + pause > last:
                tries = f"{attempts} attempt{'' if attempts == 1 else 's'}"
                message = f"{what}: gave up after {spent:.0f} s and {tries}; the last one: {_strip(what, error)}"
                stop = "" if message.endswith("?") else "."
                raise error_type(f"{message}{stop} Check the network, then run the same command again.") from error
            reporter.report(f"{_strip(what, error)}; trying again until {_clock(last - spent)}")
            sleep(pause)


class _Reporter:
    """Reports what fails, seldom enough that a person can read it."""

    def __init__(self, what: str, note: Callable[[str], None] | None):
        self._what, self._note = what, note
        self._last: float | None = None
        self._lock = threading.Lock()

    def report(self, message: str) -> None:
        """Report the outcome of the request, unless a report was made a moment ago."""
        if self._note is None:
            return
        with self._lock:
            now = time.monotonic()
            if self._last is not None and now - self._last < NOTE_EVERY_S:
                return
            self._last = now
        self._note(f"{self._what}: {message}")

    @contextlib.contextmanager
    def watch(self) -> Generator[None]:
        """Report an attempt that has no answer after `SLOW_S`. How it fails decides until when it is retried."""
        if self._note is None:
            yield
            return
        number = _watcher.add(SLOW_S, lambda: self.report(f"no answer for {SLOW_S:.0f} s; waiting for it"))
        try:
            yield
        finally:
            _watcher.remove(number)


class _Watcher:
    """Calls functions after some time unless they are removed before; one thread looks at all of them.

    A thread for each request, as `threading.Timer` starts one, takes as long as a tenth of a small request. So only a
    call that is due gets one: it may block or fail, and delays no other. The thread that looks ends when there is
    nothing to wait for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[float, Callable[[], None]]] = {}
        self._numbers = itertools.count()
        self._looks = False

    def add(self, seconds: float, call: Callable[[], None]) -> int:
        """Call a function after so many seconds; return the number by which it is removed."""
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = (time.monotonic() + seconds, call)
            if not self._looks:
                # Without room for a thread the request is made unwatched, and a later one tries again.
                with contextlib.suppress(RuntimeError):
                    threading.Thread(target=self._run, args=(seconds / 8,), name="slow-requests", daemon=True).start()
                    self._looks = True
        return number

    def remove(self, number: int) -> None:
        """Do not call a function any more."""
        with self._lock:
            self._calls.pop(number, None)

    def _run(self, pause_s: float) -> None:
        while True:
            time.sleep(pause_s)
            with self._lock:
                if not self._calls:
                    self._looks = False
                    return
                now = time.monotonic()
                for number in [number for number, (due, _) in self._calls.items() if due <= now]:
                    # Without room for a thread it is called when the thread looks again.
                    with contextlib.suppress(RuntimeError):
                        threading.Thread(target=self._calls[number][1], name="slow-request", daemon=True).start()
                        del self._calls[number]


_watcher = _Watcher()


def _begin_anew() -> None:
    global _watcher
    _watcher = _Watcher()  # a child has none of its parent's threads, and may have its locks


os.register_at_fork(after_in_child=_begin_anew)


def _clock(seconds: float) -> str:
    """Return the time of day this many seconds from now."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))


def _strip(what: str, error: TransientError) -> str:
    """Return an error's message without the name of the request, which the report begins with."""
    return str(error).removeprefix(f"{what}: ").rstrip(".")


def parse_retry_after(text: str) -> float | None:
    """Return the seconds that a Retry-After header asks to wait, from a number or a date; None for any other text."""
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None
