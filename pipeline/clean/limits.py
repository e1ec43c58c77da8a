"""Limits on measures of documents: which documents fall, and why.

Presets with `when = "encode"` drop their documents here. Those with `when = "mix"` are applied by
`pipeline.mix.cleaning` to the measures that are stored with the runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pipeline.clean.measures.measure import measure_documents
from shards.errors import InputError
from shards.terminal.display import printable

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from pipeline.recipe.presets import Limit
    from pipeline.recipe.schema import SourceRecipe

SHOWN = 10
"""Documents that a build shows when it stops, and that an encode task keeps of each preset."""
TEXT_CHARACTERS = 100
"""The text of a document that is shown there."""


class CleaningError(InputError):
    """A preset drops more of a source than its recipe allows."""


@dataclass(frozen=True, slots=True)
class FallenDocument:
    """A document that fell, as an error shows it."""

    place: str
    """The label of its span."""
    row: int
    reason: str
    measure: str
    value: float
    limit: float
    text: str
    """Its first characters."""

    def __str__(self) -> str:
        found = f"{self.measure} is {self.value:.6g}, limit {self.limit:.6g}"
        return f"{printable(self.place)} row {self.row}: {self.reason}: {found}: {printable(self.text)}"


@dataclass(slots=True)
class Fallen:
    """The documents of some spans that fell before encoding."""

    presets: Counter[str] = field(default_factory=Counter[str])
    """How many of them each preset would drop alone, by its name."""
    shown: list[tuple[int, Limit, float, str]] = field(default_factory=list[Any])
    """Some of each preset's: the row, the first limit that it breaks, its measure, the beginning of its text."""


def find_fallen(
    values: npt.NDArray[np.float32], names: Sequence[str], limits: Sequence[Limit]
) -> npt.NDArray[np.bool_]:
    """Return which documents each limit drops.

    Args:
        values: `(documents, names)`.
        names: the measures in `values`.
        limits: their measures are among the names.

    Returns:
        `(limits, documents)`.
    """
    fallen = np.zeros((len(limits), len(values)), bool)
    for number, limit in enumerate(limits):
        fallen[number] = limit.find_fallen(values[:, names.index(limit.measure)])
    return fallen


def find_first_limit(fallen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the first limit that drops each document, -1 if none does, `(documents,)`.

    Args:
        fallen: which documents each limit drops, `(limits, documents)`.
    """
    first = np.full(fallen.shape[1], -1, np.int64)
    for number in reversed(range(len(fallen))):
        first[fallen[number]] = number
    return first


def describe_fallen(
    values: npt.NDArray[np.float32], names: Sequence[str], limits: Sequence[Limit]
) -> list[tuple[str, dict[str, Any]]]:
    """Return every limit that drops one document, as text and as JSON values.

    Args:
        values: its measures, `(names,)`.
        names: the measures in `values`.
        limits: their measures are among the names.
    """
    fallen = find_fallen(values[None], names, limits)[:, 0]
    found: list[tuple[str, dict[str, Any]]] = []
    for number in np.flatnonzero(fallen).tolist():
        limit = limits[number]
        value = float(values[names.index(limit.measure)])
        facts = {"reason": limit.reason, "measure": limit.measure, "value": value, "limit": float(limit.value)}
        found.append((f"{limit.reason}: {limit.measure} is {value:.6g}, limit {limit.value:.6g}", facts))
    return found


def count_first(first: npt.NDArray[np.int64], limits: Sequence[Limit], dropped: Counter[str]) -> None:
    """Add to `dropped` how many documents fall, each under its first reason, as `find_first_limit` returns it."""
    for number, count in enumerate(np.bincount(first[first >= 0], minlength=len(limits)).tolist()):
        if count:
            dropped[limits[number].reason] += count


def find_kept(
    text: pa.LargeStringArray,
    rows: npt.NDArray[np.unsignedinteger],
    source: SourceRecipe,
    dropped: Counter[str],
    fallen: Fallen | None = None,
) -> npt.NDArray[np.bool_]:
    """Apply the limits of the source's presets with `when = "encode"`: find the documents that they leave.

    Args:
        text: the documents, `(documents,)`, without nulls, none empty.
        rows: their rows.
        source: the source.
        dropped: the counts by reason are added to it.
        fallen: what fell is added to it.

    Returns:
        Which documents stay, `(documents,)`.
    """
    limits = source.clean.limits("encode")
    names = sorted({limit.measure for limit in limits})
    if not limits or not len(text):
        return np.ones(len(text), bool)
    values = measure_documents(text, names)
    found = find_fallen(values, names, limits)
    first = find_first_limit(found)
    count_first(first, limits, dropped)
    if fallen is not None:
        for preset in dict.fromkeys(limit.preset for limit in limits):
            own = [number for number, limit in enumerate(limits) if limit.preset == preset]
            hit = np.flatnonzero(found[own].any(axis=0))
            room = max(0, SHOWN - fallen.presets[preset])
            fallen.presets[preset] += len(hit)
            for index in hit[:room].tolist():
                limit = limits[own[int(found[own, index].argmax())]]
                start = str(memoryview(cast("Any", text)[index].as_buffer())[: 4 * TEXT_CHARACTERS], "utf-8", "ignore")
                value = float(values[index, names.index(limit.measure)])
                fallen.shown.append((int(rows[index]), limit, value, start[:TEXT_CHARACTERS]))
    return first < 0
