"""Which documents of a group of similar ones stay: from the longest on, each that is similar to none kept before.

A document goes because of one that stays, never because of one that goes itself: similarity is not passed on. No two
documents that stay are similar, so none of the training split is similar to one of the validation split. Memory: about
200 bytes a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shards.format.equal_hashes import mark_first, sort_hashes

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Bools, Float64s, Int64s, Rows, UInt64s


@dataclass(frozen=True, slots=True)
class SimilarDocuments:
    """Documents that are each similar to another one, in the order of their hashes; and their pairs."""

    hi: UInt64s
    """The first 8 bytes of each content hash, `(documents,)`."""
    lo: UInt64s
    lengths: Int64s
    """Tokens, EOS included."""
    first: Int64s
    """The place of one document of each pair, `(pairs,)`."""
    second: Int64s
    jaccard: Float64s

    @classmethod
    def of(cls, pairs: Rows) -> SimilarDocuments:
        """Take them from pairs of `SIMILAR_DTYPE`."""
        hi, lo = (np.concatenate([pairs[f"{half}_a"], pairs[f"{half}_b"]]) for half in ("hi", "lo"))
        order, _ = sort_hashes(hi, lo)
        hi, lo = hi[order], lo[order]
        new = mark_first(hi, lo)
        places = np.empty(len(order), np.int64)
        places[order] = np.cumsum(new) - 1
        lengths = np.concatenate([pairs["length_a"], pairs["length_b"]])[order][new].astype(np.int64)
        return cls(hi[new], lo[new], lengths, places[: len(pairs)], places[len(pairs) :], pairs["jaccard"].copy())


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
    order = np.lexsort((documents.lo, documents.hi, -documents.lengths))
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
