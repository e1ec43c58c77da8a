"""A division for measures that are shares of a document, which may be empty."""

from __future__ import annotations

from pipeline.numba_compiler import compiled


@compiled
def divide(part: float, whole: float) -> float:
    """Return the division of a part of a document by the whole; 0 if the whole is 0."""
    return part / whole if whole else 0.0
