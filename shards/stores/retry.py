"""Ask the Hub again after a failure that may pass: how often, and how long between.

The client itself tries most requests five times within seconds; this is for what outlasts that, or what it never tries
again: a listing, a connection that breaks inside an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from shards.stores.hub_client import PassingError

ATTEMPTS = 5
"""How often in a row something is tried."""

RETRY_SECONDS = 2.0
"""Waited before the second attempt; twice as long before each later one."""

T = TypeVar("T")


def keep_trying(
    ask: Callable[[], T], *, note: Callable[[str], None], sleep: Callable[[float], object] | None = None
) -> T:
    """Ask the Hub, again and again while it fails in ways that may pass; return what it answers.

    Args:
        ask: what to do; it may be done more than once.
        note: called with what went wrong and is tried again.
        sleep: waits so many seconds; `time.sleep` when None.

    Raises:
        PassingError: it failed `ATTEMPTS` times in a row.
        HubError: it failed in a way that will not pass.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return ask()
        except PassingError as error:
            note(f"{error}; trying again")
        (sleep or time.sleep)(RETRY_SECONDS * 2**attempt)
    try:
        return ask()
    except PassingError as error:
        raise PassingError(f"{error}. Gave up after {ATTEMPTS} attempts.") from error
