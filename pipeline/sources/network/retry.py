"""Requests of the pipeline, tried again by the policy of `shards.stores.retry`, counted, and watched for silence."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from pipeline.sources.base import SourceError
from pipeline.sources.network.settings import network
from pipeline.sources.network.silence import watch
from shards.stores import retry as policy
from shards.stores.retry import TransientError

Result = TypeVar("Result")

_retries = 0
_retries_lock = threading.Lock()


def count_retries() -> int:
    """Return how often this process has had to try again, so that a task can report its part."""
    return _retries


def retry(what: str, attempt: Callable[[], Result], *, give_up_s: float | None = None) -> Result:
    """Call `attempt` until it succeeds, and return its result.

    Args:
        what: the request, as messages name it.
        attempt: raises `TransientError` for a failure that may pass; any other error is final.
        give_up_s: seconds from the first attempt on; the settings' when None.

    Raises:
        SourceError: it did not succeed in time.
    """
    bound = network().give_up_s if give_up_s is None else give_up_s
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
