"""Retry requests whose failure may pass: one policy for every request over a network.

Pauses grow, with full jitter, unless the server says how long to wait. After `give_up_s` seconds without success the
last failure is final, or after `UNREACHED_S` if no connection can be made to a host that has not answered this run. The
user is told of failures only if no request of the process is answered: one among many is normal.
"""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from email.utils import parsedate_to_datetime
from typing import TypeVar

from shards.errors import InputError, plural
from shards.terminal.reporter import report

Result = TypeVar("Result")

TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of failures that may pass."""

GIVE_UP_S = 600.0
"""How long a request is retried without success."""

UNREACHED_S = 10.0
"""How long a host is tried that has not answered this run, if no connection can be made to it: its name is probably
wrong, or there is no network."""

_REACHED = "TOKENMILL_REACHED"
"""The variable of the environment with the hosts that have answered, for the processes that this one starts."""

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0

SILENT_S = 4.0
"""Seconds without any answer after which the user is told of a failure."""

REPEAT_S = 60.0
"""Seconds until the user is told again."""


class StoreError(InputError):
    """A store, or the Hub, refused a request or did not answer it. The message says why and what to do."""


class TransientError(StoreError):
    """A failure that may pass: a broken connection, a time-out, a body cut short, HTTP 429 or 5xx."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, no_connection_to: str = ""):
        """Keep the message of a failure that a retry may mend.

        Args:
            message: what has failed.
            retry_after_s: seconds that the server asks to wait.
            no_connection_to: the host, as `note_reached` names it, if no connection could be made to it.
        """
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.no_connection_to = no_connection_to


_stop: ContextVar[threading.Event | None] = ContextVar("stop", default=None)
_failures = 0
_answered = 0.0
_told = 0.0
"""When a request of this process was answered last, and when the user was told last."""
_failures_lock = threading.Lock()


@contextlib.contextmanager
def stop_on(event: threading.Event) -> Generator[None]:
    """Let every `retry` that this thread calls in the body raise `InputError` once `event` is set."""
    token = _stop.set(event)
    try:
        yield
    finally:
        _stop.reset(token)


def note_reached(host: str) -> None:
    """Note that a host has answered a request of this run: from now on its failures are retried with patience."""
    reached = os.environ.get(_REACHED, "")
    if host not in reached.split(";"):
        os.environ[_REACHED] = f"{reached};{host}"


def count_retries() -> int:
    """Return the number of failures in this process so far that could pass; a task reports the difference."""
    return _failures


def retry(
    what: str,
    attempt: Callable[[], Result],
    *,
    error_type: Callable[[str], Exception] = StoreError,
    give_up_s: float | None = None,
    interrupt: bool = False,
) -> Result:
    """Retry `attempt` until it succeeds or the time is up, and return its result.

    Args:
        what: the request, as the messages name it.
        attempt: raises `TransientError` for a failure that may pass; any other error is final. It may run many times.
        error_type: makes the error of the last failure from its message.
        give_up_s: seconds after the first attempt; `GIVE_UP_S` when None.
        interrupt: do not wait longer than that for an attempt either. Each then runs in a thread of its own, which is
            left to itself when the time is up: a server may send a byte now and then, or pages without end.

    Raises:
        Exception: the error that `error_type` makes when the time is up, or a final error of `attempt`.
        InputError: the event of `stop_on` is set.
    """
    global _answered, _failures
    stop = _stop.get()
    sleep = stop.wait if stop else time.sleep
    bound = GIVE_UP_S if give_up_s is None else give_up_s
    started, failures = time.monotonic(), 0
    while True:
        if stop is not None and stop.is_set():
            raise InputError(f"{what}: not requested: stopped")
        try:
            left_s = started + bound - time.monotonic()
            result = _call_within(left_s, attempt) if interrupt else attempt()
            _answered = time.monotonic()
            return result
        except TransientError as error:
            with _failures_lock:
                _failures += 1
            failures += 1
            said = str(error).removeprefix(f"{what}: ").rstrip(".")
            reached = ["", *os.environ.get(_REACHED, "").split(";")]
            last = bound if error.no_connection_to in reached else min(bound, UNREACHED_S)
            # Full jitter: many workers that failed together do not come back together.
            ceiling = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 16))
            pause = random.uniform(0, ceiling) if error.retry_after_s is None else error.retry_after_s
            spent = time.monotonic() - started
            if spent + pause > last:
                tries = plural(failures, "attempt")
                message = f"{what}: gave up after {spent:.0f} s and {tries}; the last one: {said}"
                end = "" if message.endswith("?") else "."
                raise error_type(f"{message}{end} Check the network, then run the same command again.") from error
            failed = f"{plural(failures, 'failed attempt')}, the last one: {said}"
            _report_silence(f"{what}: no answer for {spent:.0f} s ({failed})", started, last)
            sleep(pause)


def _call_within(seconds: float, attempt: Callable[[], Result]) -> Result:
    """Call `attempt` in a thread, in a copy of this thread's context, and return its result.

    Raises:
        TransientError: there is none after so many seconds.
    """
    answer, context = Future[Result](), copy_context()

    def run() -> None:
        try:
            answer.set_result(context.run(attempt))
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            answer.set_exception(error)

    threading.Thread(target=run, name="request", daemon=True).start()
    try:
        return answer.result(max(0.0, seconds))
    except TimeoutError:
        if answer.done():  # with a TimeoutError of its own, or just now
            return answer.result()
        raise TransientError("no complete answer arrived") from None


def _report_silence(sentence: str, started: float, last_s: float) -> None:
    """Tell the user of retries if no request of this process has been answered for `SILENT_S` seconds."""
    global _told
    now = time.monotonic()
    silent_since = max(started, _answered)
    if now - silent_since >= SILENT_S and (_told < silent_since or now - _told >= REPEAT_S):
        _told = now
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + started + last_s - now))
        report(f"{sentence}; trying again until {until}")


def parse_retry_after(text: str) -> float | None:
    """Return the seconds that a Retry-After header asks to wait, from a number or a date; else None."""
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None
