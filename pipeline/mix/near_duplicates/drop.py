"""Near-duplicates in the mix: which of similar documents go, and the evidence.

From the longest on, each document stays that is similar to none kept before. A document goes because of one that stays,
never because of one that goes itself: similarity is not passed on. No two documents that stay are similar, so none of
the training split is similar to one of the validation split.

Only documents that nothing else drops take part. The pairs are known by content hash, so copies in several sources are
one document. Memory: about 300 bytes a pair at or above `min_jaccard`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_numbers
from pipeline.engine.tasks import InDigest, Payload, last_part
from pipeline.mix.evidence import RowPlaces
from pipeline.mix.index import Index
from pipeline.mix.near_duplicates.similar import SIMILAR_DTYPE, read_similar
from shards.format.arrays import Bools, Float64s, Int64s, Rows, UInt64s
from shards.format.content_hash import mark_first, sort_hashes
from shards.stores.open import open_store


@dataclass(frozen=True, slots=True)
class SimilarDocuments:
    """Documents that are each similar to another one, in the order of their hashes; and their pairs."""

    hi: UInt64s
    """The first 8 bytes of each content hash, `(documents,)`."""
    lo: UInt64s
    lengths: Int64s
    """Tokens, EOS included."""
    characters: Int64s
    """Of their words."""
    first: Int64s
    """The place of one document of each pair, `(pairs,)`."""
    second: Int64s
    jaccard: Float64s

    @classmethod
    def of(cls, pairs: Rows) -> SimilarDocuments:
        """Take similar documents from pairs of `SIMILAR_DTYPE`."""
        hi, lo = (np.concatenate([pairs[f"{half}_a"], pairs[f"{half}_b"]]) for half in ("hi", "lo"))
        order, _ = sort_hashes(hi, lo)
        hi, lo = hi[order], lo[order]
        new = mark_first(hi, lo)
        places = np.empty(len(order), np.int64)
        places[order] = np.cumsum(new) - 1
        lengths, characters = (
            np.concatenate([pairs[f"{name}_a"], pairs[f"{name}_b"]])[order][new].astype(np.int64)
            for name in ("length", "characters")
        )
        first, second = np.split(places, 2)
        return cls(hi[new], lo[new], lengths, characters, first, second, pairs["jaccard"].copy())


def choose_dropped(documents: SimilarDocuments, alive: Bools) -> tuple[Int64s, Int64s, Float64s]:
    """Choose which of similar documents survive; return those to drop.

    Args:
        documents: the documents and their pairs at or above the least similarity.
        alive: which of them would be in the set otherwise, `(documents,)`; the others count as if they were not there.

    Returns:
        The places of those to drop, in the order of their hashes, `(dropped,)`; of the most similar document that stays
        for each, which is longer or, if equally long, has a lower hash; and this similarity.
    """
    # Number the documents by their precedence: the longest first, of equally long ones the lowest hash.
    order = np.lexsort((documents.lo, documents.hi, -documents.characters))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    both = alive[documents.first] & alive[documents.second]
    ends = np.stack([rank[documents.first[both]], rank[documents.second[both]]])
    before, after = ends.min(axis=0), ends.max(axis=0)
    by_before = np.argsort(before, kind="stable")

    # Go through them in this order: a document that nothing has dropped stays, and drops those similar to it.
    gone = np.zeros(len(order), bool)
    centers, counts = np.unique(before, return_counts=True)
    shorter = after[by_before]
    stops = np.cumsum(counts)
    for center, start, stop in zip(centers.tolist(), (stops - counts).tolist(), stops.tolist(), strict=True):
        if not gone[center]:
            gone[shorter[start:stop]] = True

    # Of the documents that stay, name the most similar one.
    jaccard = documents.jaccard[both]
    found = np.flatnonzero(gone[after] & ~gone[before])
    found = found[np.lexsort((before[found], -jaccard[found], after[found]))]
    _, best = np.unique(after[found], return_index=True)
    best = found[best]
    document, kept = order[after[best]], order[before[best]]
    by_hash = np.argsort(document)
    return document[by_hash], kept[by_hash], jaccard[best][by_hash]


_LAST_PARTS = InDigest(lambda places: list(map(last_part, places)))


@dataclass(frozen=True, slots=True)
class SimilarPairs(Payload):
    """Where the pairs of similar documents are, and what is made of them; plain data."""

    CODE: ClassVar = 2

    places: Annotated[tuple[str, ...], _LAST_PARTS]
    """The addresses of the similar tasks' folders."""
    min_jaccard: float
    action: Literal["report", "drop"]

    def read(self) -> SimilarDocuments:
        """Read the similar documents of the pairs at or above `min_jaccard`, to drop some."""
        parts = [read_similar(open_store(place), self.min_jaccard) for place in self.places]
        return SimilarDocuments.of(np.concatenate([np.zeros(0, SIMILAR_DTYPE), *parts]))


@dataclass(frozen=True, slots=True)
class Twins:
    """The near-duplicates of a mix, each with the most similar document that stays; `(documents,)` each."""

    run: Int64s
    index: Int64s
    """In its run."""
    kept_run: Int64s
    kept_index: Int64s
    jaccard: Float64s

    def to_columns(self, places: RowPlaces, number: int) -> dict[str, Any]:
        """Return the columns of near-duplicates in the evidence of a partition."""
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
    return Twins(run[gone], place[gone], run[kept], place[kept], jaccard)
