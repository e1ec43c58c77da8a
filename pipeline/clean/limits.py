"""Limits on measures of documents: which documents fall, and why.

Presets with `when = "encode"` drop their documents here. Those with `when = "mix"` are applied by
`pipeline.mix.cleaning` to the measures that are stored with the runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.clean.measures import measure
from pipeline.clean.tally import SHOWN, Documents, Tally

if TYPE_CHECKING:
    import numpy.typing as npt

    from pipeline.recipe.presets import Limit
    from pipeline.recipe.schema import SourceRecipe


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


def identify_limits(source: SourceRecipe) -> dict[str, Any] | None:
    """Return what decides which documents fall before encoding, and what is measured; None if no preset is on.

    Of presets with `when = "mix"` only the measures count: their limits are applied later.
    """
    if not source.clean.presets():
        return None
    limits = {limit.reason: limit.value for limit in source.clean.limits("encode")}
    return {"code": measure.CODE_VERSION, "measures": source.clean.mix_measures(), "limits": limits}


def drop_beyond_limits(source: SourceRecipe, documents: Documents, tally: Tally) -> Documents:
    """Drop the documents that fall by the limits of presets with `when = "encode"`, each under its first reason."""
    limits = source.clean.limits("encode")
    if not limits:
        return documents
    names = sorted({limit.measure for limit in limits})
    # All limits at once; a document counts under the first that it breaks.
    values = measure.measure_documents(documents.text, names)
    found = find_fallen(values, names, limits)
    first = find_first_limit(found)
    count_first(first, limits, tally.dropped)
    for preset in dict.fromkeys(limit.preset for limit in limits):
        own = [number for number, limit in enumerate(limits) if limit.preset == preset]
        # A preset also counts what it would drop without the presets before it.
        hit = np.flatnonzero(found[own].any(axis=0))
        room = max(0, SHOWN - tally.steps[preset])
        tally.steps += Counter({preset: len(hit)})
        for index in hit[:room].tolist():
            limit = limits[own[int(found[own, index].argmax())]]
            facts = {"measure": limit.measure, "value": float(values[index, names.index(limit.measure)])}
            row, text = int(documents.rows[index]), documents.start_of(index)
            tally.show(preset, row, limit.reason, text, **facts, limit=float(limit.value))
    return documents.only(first < 0)
