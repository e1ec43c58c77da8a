"""Requests of the pipeline: retried by the policy of `shards.stores.retry`, counted, and watched for silence."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from pipeline.sources.base import SourceError
from pipeline.sources.network.settings import network_settings
from pipeline.sources.network.silence_watch import watch
from shards.stores import retry as policy
from shards.stores.retry import TransientError

Result = TypeVar("Result")

_retries = 0
_retries_lock = threading.Lock()


def count_retries() -> int:
    """Return the number of retries in this process so far; a task reports the difference."""
    return _retries


def retry_counted(what: str, attempt: Callable[[], Result], *, give_up_s: float | None = None) -> Result:
    """Call `attempt` until it succeeds, and return its result.

    Args:
        what: the request's name in messages.
        attempt: raises `TransientError` if another attempt may succeed; any other error is final.
        give_up_s: seconds after the first attempt at which to give up; the settings' value when None.

    Raises:
        SourceError: no attempt succeeded in time.
    """
    bound = network_settings().give_up_s if give_up_s is None else give_up_s
    with watch.wait_for(what, give_up_s=bound) as waiting:

        def counted() -> Result:
            global _retries
            try:
                return attempt()
            except TransientError as error:
                with _retries_lock:
                    _retries += 1
                waiting.attempts += 1
                waiting.last_error = str(error)
                raise

        return policy.retry(what, counted, error_type=SourceError, give_up_s=bound)
