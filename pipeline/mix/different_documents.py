"""In how many different documents the n-grams of items occur: copies are one document, and so are near-duplicates.

Near-duplicates are known if the recipe looks for them. Documents are told apart by the first 8 bytes of their hashes.
Memory: 16 bytes for each near-duplicate, and about 60 for each hit of a part of the hash space, `PART_HITS` hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.encode.run import Run
from pipeline.mix.near_duplicates.drop import SimilarPairs
from pipeline.mix.near_duplicates.survivors import choose_dropped
from shards.format.equal_hashes import mark_first

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Int64s, UInt64s

PART_HITS = 1 << 22
"""The hits of all runs are counted in parts of about this size. Each part reads them all, which are few."""


class DifferentDocuments:
    """Tells documents apart: which are the same, or nearly the same."""

    def __init__(self, similar: SimilarPairs | None):
        """Read the near-duplicates, if the build looks for them."""
        self._gone, self._kept = np.zeros((2, 0), np.uint64)
        if similar is not None:
            documents = similar.read()
            gone, kept, _ = choose_dropped(documents, np.ones(len(documents.hi), bool))
            self._gone, self._kept = documents.hi[gone], documents.hi[kept]

    def identify(self, hi: UInt64s) -> UInt64s:
        """Return a number for each document, the same for those that are one.

        Args:
            hi: the first 8 bytes of their hashes, `(documents,)`.
        """
        if not len(self._gone):
            return hi
        place = np.minimum(self._gone.searchsorted(hi), len(self._gone) - 1)
        return np.where(self._gone[place] == hi, self._kept[place], hi)

    def count(self, ngrams: int, runs: Sequence[Run]) -> Int64s:
        """Return in how many different documents of runs each n-gram occurs, `(ngrams,)`."""
        bits = (sum(run.num_hits for run in runs) // PART_HITS).bit_length()
        counts = np.zeros(ngrams, np.int64)
        # Each part of the hash space reads all hits again, so that a part fits into memory.
        for part in range(1 << bits):
            pairs = [(np.zeros(0, np.uint64), np.zeros(0, np.int64))]
            for run in runs:
                if run.num_hits:
                    numbers, own = self._read_pairs(run)
                    inside = numbers >> np.uint64(64 - bits) == part if bits else np.ones(len(own), bool)
                    pairs.append((numbers[inside], own[inside]))
            numbers, found = (np.concatenate(column) for column in zip(*pairs, strict=True))
            # Of equal pairs of document and n-gram, one counts.
            order = np.lexsort((numbers, found))
            numbers, found = numbers[order], found[order]
            counts += np.bincount(found[mark_first(numbers, found)], minlength=ngrams)
        return counts

    def _read_pairs(self, run: Run) -> tuple[UInt64s, Int64s]:
        """Return each document of a run with each n-gram in it: numbers of documents, and n-grams, `(pairs,)` each."""
        hits = run.read_hits()
        pairs = np.unique(hits["document"].astype(np.int64) << 32 | hits["ngram"])
        # Hits are in the order of documents: one range of rows has them all.
        documents, first = pairs >> 32, int(pairs[0] >> 32)
        rows = run.read_documents(first, int(documents[-1]) + 1)
        return self.identify(rows["hash_hi"][documents - first]), pairs & 0xFFFFFFFF
