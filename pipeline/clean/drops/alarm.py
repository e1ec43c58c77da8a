"""The alarm of cleaning: a step may drop a share of a source; a build stops, and a plan warns, if it drops more."""

from __future__ import annotations

import math
from typing import NamedTuple

from shards.errors import plural


class Excess(NamedTuple):
    """A step drops more of a source than the recipe allows."""

    found: float
    """Documents that the step drops; for a plan, their share."""
    came: float
    """Documents that the step decided on."""
    most: float
    """The largest share that the recipe allows, from 0 to 1."""

    @property
    def share(self) -> float:
        """The share that the step drops, from 0 to 1."""
        return self.found / self.came

    @property
    def enough(self) -> float:
        """A limit that allows it: the share, rounded up to a percent."""
        return min(1.0, math.ceil(round(self.share * 100, 6)) / 100)

    def describe(self, noun: str = "document", more: str = "") -> str:
        """Return the counts: `3 of 10 documents (30.00%)`, with more in the parentheses."""
        return f"{self.found:,} of {plural(int(self.came), noun)} ({self.share:.2%}{more})"


def find_excess(found: float, came: float, most: float) -> Excess | None:
    """Return by how much a step drops too much; None if it drops no more than the recipe allows.

    Args:
        found: documents that the step drops.
        came: documents that the step decided on.
        most: the largest share that the recipe allows, from 0 to 1.
    """
    return Excess(found, came, most) if found > most * came else None
