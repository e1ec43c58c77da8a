"""Retry requests whose failure may pass: one policy for every request over a network.

Pauses grow, with full jitter, unless the server says how long to wait. After `give_up_s` seconds without success the
last failure is final, or sooner if the failure itself says so. `shards.terminal.waiting` tells the user what has no
answer.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import TypeVar

from shards.errors import InputError, plural
from shards.terminal.waiting import wait_for

Result = TypeVar("Result")

TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of failures that may pass."""

GIVE_UP_S = 600.0
"""How long a request is retried without success."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0


class StoreError(InputError):
    """A store, or the Hub, refused a request or did not answer it. The message says why and what to do."""


class TransientError(StoreError):
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


_stop: ContextVar[threading.Event | None] = ContextVar("stop", default=None)
_failures = 0
_failures_lock = threading.Lock()


@contextlib.contextmanager
def stop_on(event: threading.Event) -> Generator[None]:
    """Let every `retry` that this thread calls in the body raise `InputError` once `event` is set."""
    token = _stop.set(event)
    try:
        yield
    finally:
        _stop.reset(token)


def count_retries() -> int:
    """Return the number of failures in this process so far that could pass; a task reports the difference."""
    return _failures


def retry(
    what: str,
    attempt: Callable[[], Result],
    *,
    error_type: Callable[[str], Exception] = StoreError,
    give_up_s: float | None = None,
) -> Result:
    """Call `attempt` until it succeeds or the time is up, and return its result.

    Args:
        what: the request, as the messages name it.
        attempt: raises `TransientError` for a failure that may pass; any other error is final. It may run many times.
        error_type: makes the error of the last failure from its message.
        give_up_s: seconds after the first attempt; `GIVE_UP_S` when None. A failure may have a smaller bound.

    Raises:
        Exception: the error that `error_type` makes when the time is up, or a final error of `attempt`.
        InputError: the event of `stop_on` is set.
    """
    stop = _stop.get()
    sleep = stop.wait if stop else time.sleep
    bound = GIVE_UP_S if give_up_s is None else give_up_s
    with wait_for(what, bound) as wait:
        while True:
            if stop is not None and stop.is_set():
                raise InputError(f"{what}: not requested: stopped")
            try:
                return attempt()
            except TransientError as error:
                _count_failure()
                wait.failures += 1
                wait.last_failure = str(error).removeprefix(f"{what}: ").rstrip(".")
                wait.give_up_s = last = bound if error.give_up_s is None else min(bound, error.give_up_s)
                # Full jitter: many workers that failed together do not come back together.
                ceiling = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(wait.failures, 16))
                pause = random.uniform(0, ceiling) if error.retry_after_s is None else error.retry_after_s
                spent = time.monotonic() - wait.started
                if spent + pause > last:
                    tries = plural(wait.failures, "attempt")
                    message = f"{what}: gave up after {spent:.0f} s and {tries}; the last one: {wait.last_failure}"
                    end = "" if message.endswith("?") else "."
                    raise error_type(f"{message}{end} Check the network, then run the same command again.") from error
                sleep(pause)


def _count_failure() -> None:
    global _failures
    with _failures_lock:
        _failures += 1


def parse_retry_after(text: str) -> float | None:
    """Return the seconds that a Retry-After header asks to wait, from a number or a date; None for any other text."""
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None
