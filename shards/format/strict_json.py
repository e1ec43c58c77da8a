"""JSON in which no object has a key twice: readers take the first or the last of the two, so that they differ."""

from __future__ import annotations

import json
from typing import Any


class RepeatedKeyError(ValueError):
    """An object has a key twice, or more keys than expected."""


def load_json(text: bytes | str) -> Any:
    """Return the value of a JSON text, in UTF-8.

    Raises:
        RepeatedKeyError: an object has a key twice.
        ValueError: not JSON.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_make_object)


def check_keys(text: bytes | str, most: int) -> None:
    """Check that no object of a JSON text has a key twice, or more than `most` keys. What is no JSON passes.

    Raises:
        RepeatedKeyError: an object has.
    """

    def check(pairs: list[tuple[str, Any]]) -> None:
        _make_object(pairs)
        if len(pairs) > most:
            raise RepeatedKeyError(f"an object has {len(pairs):,} keys; expected at most {most:,}")

    try:
        json.loads(text, object_pairs_hook=check)
    except RepeatedKeyError:
        raise
    except (ValueError, RecursionError):
        pass


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen = set[str]()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise RepeatedKeyError(f"the key {twice[:80]!r} is there twice; expected it once")
    return made
