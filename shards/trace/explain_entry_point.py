"""Why a document is not in a set: asked of the package that built it, which can read the build's work folder.

`shards` itself knows nothing of work folders. The entry point `work` of the group `tokenmill.explain` provides the
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ENTRY_POINT_GROUP = "tokenmill.explain"
ENTRY_POINT = "work"


@dataclass(frozen=True)
class Question:
    """A document, and where to look for it; plain data."""

    place: str
    """The set."""
    manifest_sha256: str
    bounds: tuple[int, int]
    """The lowest hash that may be meant, and one past the highest, as numbers of 128 bits."""
    work: str | None = None
    """The work folder; None for the default one of the set."""
    text: bytes | None = field(default=None, repr=False)
    """The document's text, if it is known."""


@dataclass(frozen=True)
class Answer:
    """The answer of a work folder about a document."""

    hashes: frozenset[str]
    """The hashes within the bounds that documents have. With more than one, nothing else is said."""
    lines: list[str]
    """For people; foreign text is not made safe yet."""
    data: dict[str, Any]
    """For machines."""


Explain = Callable[[Question], Answer | None]
"""The entry point's function. It returns None if there is no work folder at the default place.

It raises InputError if the work folder cannot be read, and RunError if the work folder is damaged."""


def load_explain() -> Explain | None:
    """Return what an installed package provides under the entry point; None if none does."""
    from importlib.metadata import entry_points  # late: takes 20 ms to load

    found = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == ENTRY_POINT]
    try:
        return found[0].load() if found else None
    except ModuleNotFoundError:  # it belongs to a package that cannot be imported here
        return None
