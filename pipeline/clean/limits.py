"""Limits on measures of documents: which documents they drop, and why.

Presets with `when = "encode"` drop their documents here. Those with `when = "mix"` are applied by
`pipeline.mix.index` to the measures that are stored with the runs.
"""

from collections.abc import Sequence

import numpy as np

from pipeline.clean.drops import Counts, SourceDrops
from pipeline.clean.measures import measure
from pipeline.clean.tally import Documents, Tally
from pipeline.recipe.presets import Limit
from pipeline.recipe.schema import SourceRecipe
from shards.format.arrays import Bools, Float32s, UInt32s


def find_violations(values: Float32s, names: Sequence[str], limits: Sequence[Limit]) -> Bools:
    """Return which documents each limit drops.

    Args:
        values: `(documents, names)`.
        names: the measures in `values`.
        limits: one at least; their measures are among the names.

    Returns:
        `(limits, documents)`.
    """
    return np.array([limit.is_violated(values[:, names.index(limit.measure)]) for limit in limits])


def count_violations(drops: SourceDrops, limits: Sequence[Limit], violated: Bools, lengths: UInt32s) -> Bools:
    """Count documents that some limits decide on.

    Args:
        drops: the table of the source, to which they are added.
        limits: the limits.
        violated: which documents each limit drops, `(limits, documents)`.
        lengths: tokens of the documents, `(documents,)`; 0 before encoding.

    Returns:
        Which documents are left, `(documents,)`.
    """
    left = np.ones(len(lengths), bool)
    for preset, own in _by_preset(limits).items():
        step = drops.step(preset)
        step.decided.add(lengths)
        step.alone = step.alone or Counts()
        step.alone.add(lengths[violated[own].any(axis=0)])
        for number in (number for number in own if violated[number].any()):
            step.reason(limits[number].reason).add(lengths[violated[number] & left])
            left &= ~violated[number]
    return left


def _by_preset(limits: Sequence[Limit]) -> dict[str, list[int]]:
    """Return the places of each preset's limits, in order."""
    places: dict[str, list[int]] = {}
    for number, limit in enumerate(limits):
        places.setdefault(limit.preset, []).append(number)
    return places


def drop_beyond_limits(source: SourceRecipe, documents: Documents, tally: Tally) -> Documents:
    """Drop the documents that break a limit of presets with `when = "encode"`, each under its first reason."""
    limits = source.clean.limits("encode")
    if not limits:
        return documents
    names = sorted({limit.measure for limit in limits})
    # All limits at once; each preset shows some of the documents that it would drop alone.
    values = measure.measure_documents(documents.seen.text, names)
    found = find_violations(values, names, limits)
    for preset, own in _by_preset(limits).items():
        for index in np.flatnonzero(found[own].any(axis=0))[: tally.room(preset)].tolist():
            limit = limits[own[int(found[own, index].argmax())]]
            value = float(values[index, names.index(limit.measure)])
            facts = {"measure": limit.measure, "value": value, "limit": float(limit.value)}
            tally.show(int(documents.rows[index]), limit.reason, documents.start_of(index), **facts)
    return documents.only(count_violations(tally.drops, limits, found, np.zeros(len(documents), np.uint32)))
