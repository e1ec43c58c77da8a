"""Near-duplicates in the mix: which of the similar documents go, and the evidence.

Only documents that nothing else drops take part. The pairs are known by content hash, so copies in several sources are
one document. Memory: about 300 bytes a pair at or above `min_jaccard`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_numbers
from pipeline.engine.tasks import NOT_IN_DIGEST, InDigest, Payload, last_part
from pipeline.mix.near_duplicates.similar import SIMILAR_DTYPE, read_similar
from pipeline.mix.near_duplicates.survivors import SimilarDocuments, choose_dropped
from shards.stores.open import open_store

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Float64s, Int64s
    from pipeline.mix.evidence import RowPlaces
    from pipeline.mix.index import Index


@dataclass(frozen=True, slots=True)
class NearDuplicates:
    """The near-duplicates of a mix."""

    compared: int
    """Pairs that were compared."""
    pairs: int
    """Those at or above `min_jaccard`."""


def _last_parts(places: tuple[str, ...], _payload: Any) -> list[str | None]:
    return [last_part(place) for place in places]


@dataclass(frozen=True, slots=True)
class SimilarPairs(Payload):
    """Where the pairs of similar documents are, and what is made of them; plain data."""

    CODE: ClassVar = 2

    places: Annotated[tuple[str, ...], InDigest(_last_parts)]
    """The addresses of the similar tasks' folders."""
    compared: Annotated[int, NOT_IN_DIGEST]
    """Pairs that were compared."""
    min_jaccard: float
    action: Literal["report", "drop"]

    def read(self) -> SimilarDocuments:
        """Read the documents of the pairs at or above `min_jaccard`."""
        parts = [read_similar(open_store(place), self.min_jaccard) for place in self.places]
        return SimilarDocuments.of(np.concatenate([np.zeros(0, SIMILAR_DTYPE), *parts]))


@dataclass(frozen=True, slots=True)
class Twins:
    """The near-duplicates of a mix, each with the most similar document that stays; `(documents,)` each."""

    compared: int
    pairs: int
    run: Int64s
    index: Int64s
    """In its run."""
    kept_run: Int64s
    kept_index: Int64s
    jaccard: Float64s

    def to_columns(self, places: RowPlaces, number: int) -> dict[str, Any]:
        """Return their columns of the evidence of a partition."""
        inside, own = places.find(number, self.run, self.index)
        size = int(places.sizes(number).sum())
        valid = np.zeros(size, bool)
        valid[own] = True
        columns: dict[str, Any] = {}
        for name, kind, values in (
            ("twin_run", pa.uint32(), self.kept_run),
            ("twin_index", pa.uint32(), self.kept_index),
            ("jaccard", pa.float64(), self.jaccard),
        ):
            column = np.zeros(size, kind.to_pandas_dtype())
            column[own] = values[inside]
            columns[name] = wrap_numbers(kind, column, valid)
        return columns


def drop_near_duplicates(index: Index, task: SimilarPairs) -> Twins:
    """Find the near-duplicates of an index, and drop them from it unless they are only reported.

    Args:
        index: the documents; nothing but `take` will drop more of it.
        task: the pairs of similar documents.
    """
    # Only documents that are still kept take part.
    documents = task.read()
    run, place = index.find(documents.hi, documents.lo)
    gone, kept, jaccard = choose_dropped(documents, run >= 0)
    report = task.action == "report"
    index.drop_near_duplicates(run[gone], place[gone], run[kept], documents.lengths[gone], report=report)
    pairs = len(documents.first)
    return Twins(task.compared, pairs, run[gone], place[gone], run[kept], place[kept], jaccard)
