"""Add up the figures of all shards; the audit's checks judge the totals.

Adds one shard at a time, in the order of the manifest, so that the result does not depend on the number of workers.
Holds a histogram for each source and split, and the samples; neither grows with the number of shards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.audit.histogram import BINS
from shards.audit.shard_figures import ShardFigures, Sketch
from shards.format.manifest import Split

if TYPE_CHECKING:
    import numpy.typing as npt

SET_NGRAM_ROW = np.dtype([("hash", "<u8"), ("document", "<i8"), ("key", "<u8"), ("shard", "<i4")])
"""`shard.NGRAM_ROW`, with the shard's number in the manifest."""

MAX_MISPLACED = 100


class SplitTotals:
    """The counts of one split; see `ShardFigures` for their meaning. `shards` counts the shards that hold an id."""

    def __init__(self, sources: int, vocab_size: int):
        self.counts = np.zeros((sources, vocab_size), np.int64)
        self.documents = np.zeros(vocab_size, np.int64)
        self.shards = np.zeros(vocab_size, np.int32)
        self.example = np.full((vocab_size, 2), -1, np.int64)  # shard's number, document's number
        self.lengths = np.zeros((sources, BINS), np.int64)
        self.shortest = np.full(sources, 2**32, np.int64)
        self.longest = np.zeros(sources, np.int64)

    @property
    def tokens(self) -> int:
        """Tokens of the split."""
        return int(self.counts.sum())


@dataclass
class Totals:
    """The whole set's figures.

    Attributes:
        source_names: the names of the sources, in the order of the counts.
        splits: the counts of each split; both are always present.
        misplaced: the first few special ids inside documents: shard number, document number and id.
        passages: sampled passages of training documents, `SET_NGRAM_ROW`.
        passage_documents: training documents whose passages were sampled.
        val_ngrams: sampled n-grams of validation, `SET_NGRAM_ROW`.
        found_ngrams: those that training has too, with one place in training, `SET_NGRAM_ROW`.
        sketches: the sketches of sampled training documents.
        phases: how often each phase holds each id, int64 `(vocab_size,)`, in order; none in a set without phases.
    """

    source_names: list[str]
    vocab_size: int
    splits: dict[Split, SplitTotals] = field(init=False)
    misplaced: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    passage_documents: int = 0
    sketches: list[Sketch] = field(default_factory=list[Sketch])
    _passages: list[npt.NDArray[Any]] = field(default_factory=list["npt.NDArray[Any]"])
    _val_ngrams: list[npt.NDArray[Any]] = field(default_factory=list["npt.NDArray[Any]"])
    found_ngrams: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, SET_NGRAM_ROW))
    phases: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict[str, "npt.NDArray[np.int64]"])

    def __post_init__(self) -> None:
        self.splits = {split: SplitTotals(len(self.source_names), self.vocab_size) for split in ("train", "val")}

    @property
    def train(self) -> SplitTotals:
        """The totals of the training split."""
        return self.splits["train"]

    @property
    def passages(self) -> npt.NDArray[Any]:
        """Sampled passages of training documents, `SET_NGRAM_ROW`."""
        return np.concatenate([np.empty(0, SET_NGRAM_ROW), *self._passages])

    @property
    def val_ngrams(self) -> npt.NDArray[Any]:
        """Sampled n-grams of validation documents, `SET_NGRAM_ROW`."""
        return np.concatenate([np.empty(0, SET_NGRAM_ROW), *self._val_ngrams])

    def add(self, shard: int, figures: ShardFigures, phase: str | None = None) -> None:
        """Add the figures of a shard, given its number in the manifest, and its phase."""
        split = self.splits[figures.split]
        split.counts += figures.counts
        if phase is not None:
            self.phases[phase] = self.phases.get(phase, 0) + figures.counts.sum(axis=0)
        split.documents += figures.documents
        split.shards += figures.documents > 0
        new = (split.example[:, 0] < 0) & (figures.example >= 0)
        split.example[new, 0] = shard
        split.example[new, 1] = figures.example[new]
        split.lengths += figures.lengths
        np.minimum(split.shortest, figures.shortest, out=split.shortest)
        np.maximum(split.longest, figures.longest, out=split.longest)
        room = MAX_MISPLACED - len(self.misplaced)
        self.misplaced += [(shard, document, token) for document, token in figures.misplaced[:room]]
        self.passage_documents += figures.passage_documents
        self.sketches += figures.sketches
        self._passages.append(_with_shard(figures.passages, shard))
        if figures.split == "val":
            self._val_ngrams.append(_with_shard(figures.ngrams, shard))
        elif len(figures.ngrams):
            found = np.concatenate([self.found_ngrams, _with_shard(figures.ngrams, shard)])
            self.found_ngrams = found[np.unique(found["hash"], return_index=True)[1]]


def _with_shard(found: npt.NDArray[Any], shard: int) -> npt.NDArray[Any]:
    seen = np.empty(len(found), SET_NGRAM_ROW)
    for name in ("hash", "document", "key"):
        seen[name] = found[name]
    seen["shard"] = shard
    return seen
