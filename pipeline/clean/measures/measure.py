"""Measures: small numbers that say what a document is like. Presets set limits on them; nothing edits a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.clean.measures import code, lines, phrases, repetition, sentences, words
from pipeline.clean.measures.batch import Batch, Measure

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

CODE_VERSION = 1
"""Raised when a measure of a text changes."""

SLICE_BYTES = 1 << 20
"""Documents are measured in slices of about this much text: the tables of a slice stay in the processor's cache."""

LONG_BYTES = 1 << 23
"""Of a longer document, the tables of one family of measures are freed before those of the next are made."""

_FAMILIES = (
    words.MEASURES,
    lines.MEASURES,
    repetition.LINE_MEASURES,
    repetition.NGRAM_MEASURES,
    phrases.MEASURES,
    sentences.MEASURES,
    *({name: taken} for name, taken in code.MEASURES.items()),
)
_ALL: dict[str, Measure] = {name: taken for family in _FAMILIES for name, taken in family.items()}

MEASURES: dict[str, str] = {name: measure.about for name, measure in _ALL.items()}
"""Name -> what it is, with its unit, in one line."""


def measure_documents(text: pa.LargeStringArray, names: Sequence[str]) -> npt.NDArray[np.float32]:
    """Measure documents.

    Args:
        text: `(documents,)`, no nulls, none empty, valid UTF-8.
        names: keys of `MEASURES`.

    Returns:
        The measures, `(documents, names)`, float32, finite.
    """
    found = np.empty((len(text), len(names)), np.float32)
    done = 0
    for batch in _cut(text):
        for family in [_ALL] if len(batch.data) <= LONG_BYTES else _FAMILIES:
            own = Batch(batch.data, batch.offsets)
            for column, name in enumerate(names):
                if name in family:
                    found[done : done + len(batch), column] = family[name].take(own)
            own.drop_tables()
        done += len(batch)
    return found


def _cut(text: pa.LargeStringArray) -> Iterator[Batch]:
    """Yield the documents in slices of about `SLICE_BYTES`, one document at least."""
    if not len(text):
        return
    buffers: Any = text.buffers()
    offsets = np.frombuffer(buffers[1], np.int64)[text.offset : text.offset + len(text) + 1]
    data = np.frombuffer(buffers[2], np.uint8)
    first = 0
    while first < len(text):
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + SLICE_BYTES, "right")) - 1)
        start, stop = offsets[first], offsets[last]
        yield Batch(data[start:stop], offsets[first : last + 1] - start)
        first = last
