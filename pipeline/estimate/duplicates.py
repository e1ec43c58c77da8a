"""Duplicates: how much of each source is left when documents with equal text count once, as in the mix.

A local source with at most `COUNTED_BYTES` of text is read and hashed whole, unless it has slow filters. For any other
source, only the documents of the pilot's runs are compared. Most of their copies are elsewhere in the source, so the
result is a lower bound of what the build drops. `read_everything` reads and hashes all sources. Near-duplicates do not
count.

Memory: 20 bytes per hashed document, and 100 MB for the comparison.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from pipeline.clean.documents import DocumentStream
from pipeline.sources.base import Unit
from pipeline.sources.selection import Selection
from shards.format.content_hash import hash_documents
from shards.format.equal_hashes import divide_hashes, find_copies, sort_hashes

if TYPE_CHECKING:
    import numpy.typing as npt

    from pipeline.arrow_arrays import Integers
    from pipeline.encode.run import Run

COUNTED_BYTES = 128 << 20
"""A local source with at most this much text is always hashed whole: a second or two."""
_PART_DOCUMENTS = 1 << 20
"""Documents that are compared at once, about."""
_THREADS = 4

Basis = Literal["not counted", "sample", "all text"]


@dataclass(frozen=True, slots=True)
class Distinct:
    """How much of a source is left without duplicates, as shares of the documents or bytes that cleaning keeps."""

    text: float = 1.0
    """Share of the text that is left."""
    duplicates: float = 0.0
    """Share of the documents that equal an earlier one of the same source."""
    elsewhere: float = 0.0
    """Share of the documents that equal one of another source."""
    basis: Basis = "not counted"
    """The texts that were compared. With "sample", the shares of duplicates are lower bounds of what the build will
    find."""


_HASHED = np.dtype([("hi", "<u8"), ("lo", "<u8"), ("size", "<u4")])
"""A document: the halves of its content hash, and its bytes of text or its tokens."""


def find_distinct(
    selections: list[Selection], sampled: Sequence[Sequence[Run]], *, read_everything: bool = False
) -> list[Distinct]:
    """Estimate how much of each source is left without duplicates.

    Args:
        selections: the parts of the sources that the build would read.
        sampled: the runs of the pilot, by source.
        read_everything: hash all text that the build would read, including remote text.

    Raises:
        SourceError: a file cannot be read as the recipe says.
    """
    tables: list[npt.NDArray[np.void]] = []
    whole: list[bool] = []
    for selection, runs in zip(selections, sampled, strict=True):
        quick = not selection.is_remote and selection.text_bytes <= COUNTED_BYTES and not selection.source.clean.is_slow
        whole.append(selection.source.content == "column" and (read_everything or quick))
        parts = _hash_source(selection) if whole[-1] else list(map(_hash_run, runs))
        tables.append(np.concatenate([np.zeros(0, _HASHED), *parts]))
    return [
        Distinct(
            text=1 - sizes / max(1, int(table["size"].sum(dtype=np.int64))),
            duplicates=inside / max(1, len(table)),
            elsewhere=elsewhere / max(1, len(table)),
            basis="all text" if counted else "sample",
        )
        for (inside, elsewhere, sizes), table, counted in zip(_compare(tables), tables, whole, strict=True)
    ]


def _hash_run(run: Run) -> npt.NDArray[np.void]:
    rows = run.read_documents(0, run.num_documents)
    return _make_table(rows["hash_hi"], rows["hash_lo"], rows["length"])


def _hash_source(selection: Selection) -> list[npt.NDArray[np.void]]:
    def hash_unit(unit: Unit) -> npt.NDArray[np.void]:
        parts = [np.zeros(0, _HASHED)]
        for _, documents in DocumentStream(selection.source, unit.spans):
            hashes = hash_documents(documents.data, documents.offsets)
            parts.append(_make_table(hashes[:, 0], hashes[:, 1], np.diff(documents.offsets)))
        return np.concatenate(parts)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(hash_unit, selection.units))


def _make_table(hi: Integers, lo: Integers, sizes: Integers) -> npt.NDArray[np.void]:
    table = np.empty(len(hi), _HASHED)
    table["hi"], table["lo"], table["size"] = hi, lo, sizes
    return table


def _compare(tables: list[npt.NDArray[np.void]]) -> list[list[int]]:
    """Count the documents dropped from each table: copies of its own, copies of others, and the sizes of both."""
    counts = np.zeros((len(tables), 3), np.int64)
    for part in divide_hashes(sum(map(len, tables)), _PART_DOCUMENTS):
        chosen = [table[part.holds(table["hi"])] for table in tables]
        rows = np.concatenate(chosen)
        sources = np.repeat(np.arange(len(tables)), list(map(len, chosen)))

        # Of equal documents, the first in the order of the sources stays, as in the mix.
        order, shared = sort_hashes(rows["hi"], rows["lo"], bits=part.bits)
        copies, originals = find_copies(rows["hi"], rows["lo"], order[shared])
        inside = sources[copies] == sources[originals]
        for column, values in enumerate((inside, ~inside, rows["size"][copies])):
            counts[:, column] += np.bincount(sources[copies], values, len(tables)).astype(np.int64)
    return counts.tolist()
