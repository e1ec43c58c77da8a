"""Which documents hold items of evaluation sets, decided from hits, by an item's words and n-grams; no text is read.

A document holds an item if most of the item's words are in it, in runs of `NGRAM_WORDS` words or more, within a stretch
of twice the item's bytes. N-grams that are common in the corpus do not count, because their authors have not copied
them from the item, with one exception: nearly all of the item is there. An item that a thousand pages have copied is
contamination, not a common phrase. Common n-grams that more than `MOST_ITEMS` different items share, such as those of a
licence or of the wording of a task, are a phrase in any case. A short item is one n-gram: common, or not.

Memory: about 30 bytes for each n-gram of the items, and the hits of one run.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from pipeline.arrow_arrays import spread
from pipeline.clean.decontamination.items import LONG_WORDS, Items
from shards.format.arrays import Int64s, Rows

COMMON_DOCUMENTS = 10
"""Source of the number: Brown et al. 2020 (GPT-3), appendix C, which leaves out n-grams found more often."""
COMMON_ONE_IN = 10_000
"""An n-gram in a hundred documents of a large corpus may have been copied from the item; one in more is common."""
MOST_ITEMS = 3
"""Different items that may have a common n-gram which still tells one of them: sets list some items twice or more."""
LEAST_SHARE = 0.7
"""Share of an item's words that a document must hold, without those of common n-grams."""
LEAST_SHARE_OF_FEW = 0.9
"""The same if they are fewer than `MANY_WORDS`; fewer than `LONG_WORDS` words beside common n-grams tell nothing."""
MANY_WORDS = 13
WHOLE_SHARE = 0.9
"""Share of an item's words, those of common n-grams included, that only a copy has."""
STRETCH = 2
"""How many times the item's bytes the stretch of a document may have in which its words are found."""


HELD_DTYPE = np.dtype(
    [
        ("document", "<u4"),  # its place in the run
        ("item", "<u4"),
        ("share", "<f4"),  # of the item's words; without those of common phrases if they did not count
        ("start", "<u8"),  # first byte in the document's text of what was found
        ("stop", "<u8"),  # one past the last
        ("run", "<u4"),  # from here on what the mix knows of the document; `HeldItems` leaves it 0
        ("source", "<u4"),
        ("hash_hi", "<u8"),
        ("hash_lo", "<u8"),
        ("length", "<u4"),
    ]
)
"""A document and an item that it holds."""


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of an item, each set of them as a number with a bit for each word."""

    ngrams: dict[int, int]
    """The words of each n-gram."""
    rare: frozenset[int]
    """The n-grams that are not common."""
    outside: int
    """Words in no common n-gram."""
    own: int
    """Words in no phrase that many items share."""
    count: int

    @property
    def fewest(self) -> float:
        """The fewest words of an item, in n-grams that are no phrases, that a document must have to hold it."""
        words = self.outside.bit_count()
        words = words if words >= LONG_WORDS or words == self.count else self.own.bit_count()
        return words * _least_share(words)

    def weigh(self, found: set[int]) -> float:
        """Return the share of an item's words that a document holds in n-grams found together; 0 if it is too small."""
        rare = reduce(int.__or__, map(self.ngrams.__getitem__, found & self.rare), 0)
        any_words = reduce(int.__or__, map(self.ngrams.__getitem__, found), 0)
        share, outside = _share(rare, self.outside), self.outside.bit_count()
        if share < _least_share(outside) or (outside < LONG_WORDS and outside != self.count):
            share = 0.0
        whole = any_words.bit_count() / self.count
        if whole < WHOLE_SHARE or _share(any_words, self.own) < _least_share(self.own.bit_count()):
            whole = 0.0
        return max(share, whole)


def _least_share(words: int) -> float:
    return LEAST_SHARE if words >= MANY_WORDS else LEAST_SHARE_OF_FEW


def _share(found: int, words: int) -> float:
    return (found & words).bit_count() / words.bit_count() if words else 0.0


class HeldItems:
    """Finds the documents that hold items."""

    def __init__(self, items: Items, counts: Int64s, documents: int):
        """Decide which n-grams of the items are too common to tell that a document holds one.

        Args:
            items: the items.
            counts: in how many different documents each n-gram occurs, `(ngrams,)`.
            documents: how many documents there are.
        """
        self._items = items
        self.common = counts > max(COMMON_DOCUMENTS, documents // COMMON_ONE_IN)
        """Which n-grams are common, bool `(ngrams,)`."""
        # The items of each n-gram, in the order of n-grams: `find` looks them up by hit.
        sizes = np.diff(items.offsets)
        owners = np.repeat(np.arange(len(sizes)), sizes)
        self._phrases = self.common & (_count_items(items, owners) > MOST_ITEMS)
        """Common n-grams that many items share. Alone, they lead to no item."""
        pairs = np.unique(items.of_items << 32 | owners)
        self._by_ngram = np.searchsorted(pairs >> 32, np.arange(len(items.ngrams) + 1))
        self._items_by_ngram = pairs & 0xFFFFFFFF
        self._words: dict[int, _Words] = {}

    def find(self, hits: Rows) -> Rows:
        """Return the documents of a run that hold items, in their order, `HELD_DTYPE (held,)`.

        Args:
            hits: the run's hits, `HIT_DTYPE (hits,)`, in the order of documents.
        """
        # Phrases lead to no item: what is left are hits that may tell one.
        telling = np.flatnonzero(~self._phrases[hits["ngram"]])
        # One pair for each hit and each item that has its n-gram.
        first = self._by_ngram[hits["ngram"][telling]]
        counts = self._by_ngram[hits["ngram"][telling] + 1] - first
        owner = np.repeat(telling, counts)
        item = self._items_by_ngram[spread(first, counts)]
        # Count the hits of each document and item, and weigh those that can be enough.
        documents = hits["document"].astype(np.int64)  # as their numbers are: else each search would convert all
        places, found = np.unique(documents[owner] << 32 | item, return_counts=True)
        held: list[tuple[float, ...]] = []
        for place, count in zip(places.tolist(), found.tolist(), strict=True):
            number, words = place >> 32, self._find_words(place & 0xFFFFFFFF)
            size = int(self._items.rows["size"][place & 0xFFFFFFFF])
            # Even if no two of them overlap, they are too few words.
            if count * size < words.fewest:
                continue
            begin, end = documents.searchsorted([number, number + 1])
            best = self._find_best(hits[begin:end], place & 0xFFFFFFFF, words)
            if best is not None:
                held.append((number, place & 0xFFFFFFFF, *best))
        rows = np.zeros(len(held), HELD_DTYPE)
        found = ["document", "item", "share", "start", "stop"]
        rows[found] = np.array(held, rows[found].dtype)
        return rows

    def _find_words(self, item: int) -> _Words:
        """Return the words of an item, which are found once."""
        if item not in self._words:
            ngrams = self._items.of_items[self._items.offsets[item] : self._items.offsets[item + 1]].tolist()
            count, size = (int(self._items.rows[name][item]) for name in ("words", "size"))
            words: dict[int, int] = {}
            for place, ngram in enumerate(ngrams):
                words[ngram] = words.get(ngram, 0) | ((1 << size) - 1) << place
            # Sets of words are numbers: bit n is word n of the item.
            all_words = (1 << count) - 1
            rare = frozenset(ngram for ngram in words if not self.common[ngram])
            outside = all_words & ~reduce(int.__or__, (words[ngram] for ngram in words if ngram not in rare), 0)
            # Of a short item, any common n-gram is a phrase, which tells nothing of the item.
            phrases = self._phrases if count >= LONG_WORDS else self.common
            own = all_words & ~reduce(int.__or__, (words[ngram] for ngram in words if phrases[ngram]), 0)
            self._words[item] = _Words(words, rare, outside, own, count)
        return self._words[item]

    def _find_best(self, hits: Rows, item: int, words: _Words) -> tuple[float, int, int] | None:
        """Return the stretch of a document that holds the most of an item: share, start, stop; None if none does."""
        hits = hits[np.isin(hits["ngram"], list(words.ngrams))]
        hits = hits[np.argsort(hits["start"], kind="stable")]
        # The item's length in bytes is not stored: it is that of its n-grams, by their mean.
        mean = float((hits["stop"] - hits["start"]).mean())
        reach = STRETCH * mean * words.count / int(self._items.rows["size"][item])
        starts, stops, ngrams = hits["start"].tolist(), hits["stop"].tolist(), hits["ngram"].tolist()
        best: tuple[float, int, int] | None = None
        last = 0
        # Move a window over the hits: `last` never goes back.
        for first in range(len(ngrams)):
            reached = last
            while last < len(ngrams) and (last <= first or stops[last] - starts[first] <= reach):
                last += 1
            if last == reached and first:
                continue  # the stretch before held all of this one
            share = words.weigh(set(ngrams[first:last]))
            if share and (best is None or share > best[0]):
                best = share, first, last
        if best is None:
            return None
        # Leave out what is not needed at both ends: n-grams that are elsewhere in the stretch, too, or in common use.
        share, first, last = best
        while words.weigh(set(ngrams[first + 1 : last])) >= share:
            first += 1
        while words.weigh(set(ngrams[first : last - 1])) >= share:
            last -= 1
        return share, starts[first], max(stops[first:last])


def _count_items(items: Items, owners: Int64s) -> Int64s:
    """Return how many different items that may be held have each n-gram, `(ngrams,)`; equal items are one.

    Args:
        items: the items.
        owners: the item of each of `items.of_items`.
    """
    sums = np.zeros(len(items.rows), np.uint64)
    np.add.at(sums, owners, items.ngrams[items.of_items])
    _, different = np.unique(sums, return_inverse=True)
    pairs = np.unique(items.of_items << 32 | different[owners])
    return np.bincount(pairs >> 32, minlength=len(items.ngrams))
