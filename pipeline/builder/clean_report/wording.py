"""Words that the printed report and the pages have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def name_ends(action: str) -> dict[str, str]:
    """Return the words for what becomes of both near-duplicates of a pair: `dropped` and `kept` of the report.

    Args:
        action: `drop`, or `report`, which drops nothing.
    """
    return {"dropped": "dropped" if action == "drop" else "would go", "kept": "stays"}


def describe_unread(names: Sequence[str]) -> str:
    """Return the words for sources that were read in part, in print and on pages; nothing if there are none."""
    if not names:
        return ""
    return f"Only a part of {', '.join(names)} was read. The rest was not searched, and is not in the set."


def describe_others(limit: dict[str, Any]) -> str:
    """Return how many documents a limit would drop at other values: `3 at 25, 62 at 75`."""
    return ", ".join(f"{other['documents']:,} at {other['value']:g}" for other in limit["others"])
