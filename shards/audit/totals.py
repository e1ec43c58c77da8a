"""Figures of the audit: counts and samples of one shard, added up over the shards of a split.

Shards are added one at a time, in the order of the manifest, so that the result does not depend on the number of
workers. Figures hold a histogram for each source, and samples; neither grows with the number of shards.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shards.audit.histogram import BINS
from shards.format.arrays import Int32s, Int64s, Rows
from shards.format.manifest import Split
from shards.format.vocabulary import Vocabulary

NGRAM_ROW = np.dtype([("hash", "<u8"), ("document", "<i8"), ("shard", "<i4")])
"""An n-gram's hash, and the place of its document."""

MAX_MISPLACED = 100


@dataclass
class Figures:
    """The figures of one shard, or of all shards of one split.

    Attributes:
        split: the split.
        counts: int64 `(sources, vocab_size)`, how often each id occurs.
        documents: int64 `(vocab_size,)`, documents that hold each id.
        shards: int32 `(vocab_size,)`, shards that hold each id.
        example: int64 `(vocab_size,)`, a document that holds each id, as `encode_place` gives it; -1 without one.
        lengths: int64 `(sources, BINS)`, documents by length in tokens, EOS included.
        shortest, longest: int64 `(sources,)`.
        misplaced: the first few documents with a special id inside (EOS before the end, or any other): shard, document
            and id.
        ngrams: of validation, sampled n-grams; of training, the n-grams of validation that it has, each with one place.
    """

    split: Split
    counts: Int64s
    documents: Int64s
    shards: Int32s
    example: Int64s
    lengths: Int64s
    shortest: Int64s
    longest: Int64s
    misplaced: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    ngrams: list[Rows] = field(default_factory=list[Rows])

    @property
    def id_counts(self) -> Int64s:
        """How often each id occurs, int64 `(vocab_size,)`."""
        return self.counts.sum(axis=0)

    @property
    def tokens(self) -> int:
        """Tokens of the shards."""
        return int(self.counts.sum())

    def add(self, other: Figures) -> None:
        """Add the figures of a shard."""
        self.counts += other.counts
        self.documents += other.documents
        self.shards += other.shards
        # The first shard that holds an id gives its example.
        self.example = np.where(self.example < 0, other.example, self.example)
        self.lengths += other.lengths
        np.minimum(self.shortest, other.shortest, out=self.shortest)
        np.maximum(self.longest, other.longest, out=self.longest)
        self.misplaced = (self.misplaced + other.misplaced)[:MAX_MISPLACED]
        for found in other.ngrams:
            self.add_ngrams(found)

    def add_ngrams(self, found: Rows) -> None:
        """Add n-grams, `NGRAM_ROW`; for training, the first place of each is enough."""
        if self.split == "train" and len(found):
            # Added up at once: shards that repeat validation would otherwise grow without limit.
            found = join_ngrams([*self.ngrams, found])
            self.ngrams = [found[np.unique(found["hash"], return_index=True)[1]]]
        elif len(found):
            self.ngrams.append(found)


def make_figures(split: Split, sources: int, vocab_size: int) -> Figures:
    """Return the figures of no shard of a split."""
    return Figures(
        split,
        counts=np.zeros((sources, vocab_size), np.int64),
        documents=np.zeros(vocab_size, np.int64),
        shards=np.zeros(vocab_size, np.int32),
        example=np.full(vocab_size, -1, np.int64),
        lengths=np.zeros((sources, BINS), np.int64),
        shortest=np.full(sources, 2**32, np.int64),
        longest=np.zeros(sources, np.int64),
    )


def encode_place(shard: int, document: int) -> int:
    """Return one number for the place of a document: the number of its shard, then its number there."""
    return shard << 32 | document


def decode_place(place: int) -> tuple[int, int]:
    """Return the number of a shard, and of a document in it, from `encode_place`."""
    return place >> 32, place & 0xFFFFFFFF


def join_ngrams(parts: list[Rows]) -> Rows:
    """Return n-grams of several parts as one array, `NGRAM_ROW`."""
    return np.concatenate([np.empty(0, NGRAM_ROW), *parts])


def find_firsts(*columns: Rows) -> Int64s:
    """Return where each run of equal rows begins, int64 `(runs,)`, for columns of one length."""
    new = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(np.append(True, new)[: len(columns[0])])


class Totals:
    """The figures of a whole set: of each split, both of which are always present, and counts of each phase.

    `phases` has, in order, how often each phase holds each id, int64 `(vocab_size,)`; none in a set without phases.
    """

    def __init__(self, source_names: list[str], vocabulary: Vocabulary):
        self.source_names, self.vocabulary = source_names, vocabulary
        self.train = make_figures("train", len(source_names), len(vocabulary))
        self.val = make_figures("val", len(source_names), len(vocabulary))
        self.phases: dict[str, Int64s] = {}

    @property
    def both(self) -> tuple[Figures, Figures]:
        """The figures of validation and of training."""
        return self.val, self.train

    @property
    def source_tokens(self) -> Int64s:
        """Tokens of each source in both splits, int64 `(sources,)`."""
        return self.val.counts.sum(axis=1) + self.train.counts.sum(axis=1)

    def add(self, figures: Figures, phase: str | None) -> None:
        """Add the figures of a shard, and of its phase."""
        (self.train if figures.split == "train" else self.val).add(figures)
        if phase is not None:
            self.phases[phase] = self.phases.get(phase, 0) + figures.id_counts
