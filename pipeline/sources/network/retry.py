"""What all reading over a network shares: its settings, and the one policy for failures that pass.

Settings say where and how, not what, so they are no part of a recipe: flags of the command line, handed to the worker
processes as environment variables. A failure that may pass is tried again with growing, jittered pauses, or after the
time that the server asked for, until `give_up_s` have passed without success; then the last word says what to do.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields
from email.utils import parsedate_to_datetime
from typing import TypeVar

from pipeline.sources.base import SourceError
from pipeline.sources.network.silence import watch

Result = TypeVar("Result")

TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of failures that may pass."""

_PREFIX = "TOKENMILL_"
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Network:
    """How to read over a network."""

    timeout_s: float = 30.0
    """How long a server may be silent, before or within an answer."""
    give_up_s: float = 600.0
    """How long one request is tried again and again without success."""
    connections: int = 16
    """Connections of each worker process."""
    cache: str = ""
    """Folder of fetched parts of files; empty: none."""
    cache_all: bool = False
    """Keep all that is fetched there, not only what the build itself reads twice."""
    cache_bytes: int = 20 * 10**9
    """Most bytes in that folder; what was used longest ago goes first."""
    content_connections: int = 64
    """The same for the archive's files, which are small: their time is the wait for an answer, not the line."""
    content_endpoint: str = "https://softwareheritage.s3.amazonaws.com/content"
    """Where Software Heritage's objects are: `ENDPOINT/SHA1`, or `s3://bucket/prefix`, read anonymously."""

    def export(self) -> None:
        """Put the settings into the environment, for this process and those it starts."""
        for field in fields(self):
            os.environ[_PREFIX + field.name.upper()] = str(getattr(self, field.name))


def network() -> Network:
    """Return the settings that the environment holds.

    Raises:
        SourceError: a variable is not a number where one is expected.
    """
    values: dict[str, object] = {}
    for field in fields(Network):
        text = os.environ.get(_PREFIX + field.name.upper())
        if text is None:
            continue
        kind = type(field.default)
        try:
            values[field.name] = text == "True" if kind is bool else kind(text)
        except ValueError as error:
            raise SourceError(
                f"{_PREFIX}{field.name.upper()}: expected {kind.__name__}, got {text!r}. Correct or unset it."
            ) from error
    return Network(**values)  # type: ignore[arg-type]


_keepers: list[object] = []


@contextlib.contextmanager
def keep_fetched() -> Generator[None]:
    """Put what any thread fetches meanwhile into the cache: it will be read once more."""
    keeper = object()
    _keepers.append(keeper)
    try:
        yield
    finally:
        _keepers.remove(keeper)


def is_kept() -> bool:
    """Say whether what is fetched now goes into the cache."""
    return bool(_keepers) or network().cache_all


class TransientError(Exception):
    """A failure that may pass: a reset, a time-out, a short body, HTTP 429 or 5xx."""

    def __init__(self, reason: str, *, retry_after_s: float | None = None):
        super().__init__(reason)
        self.retry_after_s = retry_after_s


def parse_retry_after(text: str) -> float | None:
    """Return the seconds that a Retry-After header asks to wait, as a number or a date; None if it is neither."""
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


_retries = 0
_retries_lock = threading.Lock()


def _count_retry() -> None:
    global _retries
    with _retries_lock:
        _retries += 1


def count_retries() -> int:
    """Return how often this process has had to try again, so that a task can report its part."""
    return _retries


def retry(what: str, attempt: Callable[[], Result], *, give_up_s: float | None = None) -> Result:
    """Call `attempt` until it succeeds.

    Args:
        what: what is being read, for the last word.
        attempt: raises `TransientError` for a failure that may pass; whatever else it raises is final.
        give_up_s: how long to go on; the settings' when None.

    Raises:
        SourceError: it did not succeed in time.
    """
    bound = network().give_up_s if give_up_s is None else give_up_s
    with watch.wait_for(what, give_up_s=bound) as waiting:
        while True:
            try:
                return attempt()
            except TransientError as error:
                _count_retry()
                waiting.attempts += 1
                waiting.last_error = str(error)
                # Full jitter: many workers that failed together do not come back together.
                ceiling = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(waiting.attempts, 16))
                pause = error.retry_after_s if error.retry_after_s is not None else random.uniform(0, ceiling)
                spent = time.monotonic() - waiting.started
                if spent + pause > bound:
                    raise SourceError(
                        f"{what}: gave up after {spent:.0f} s and {waiting.attempts} attempts; the last one: {error}. "
                        "Check the network and run the same command again: finished units are kept, only what is "
                        "missing is read."
                    ) from error
                time.sleep(pause)
