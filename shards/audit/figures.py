"""Audit one shard in one pass, and add up over the shards: counts, lengths, and samples of n-grams to compare.

Counts are exact. N-grams that must be compared across the whole set are sampled by a hash of their own content, so that
equal ones are sampled together in every shard. Shards are added one at a time, in the order of the manifest, so that
the result does not depend on the number of workers. Figures hold a histogram for each source, and samples, whose rate
depends on the size of validation; neither grows with the number of shards.

Cost a token on one core (measured on code): decompression and counts by source 6 ns, documents that hold each id 6,
n-grams 12.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from shards.audit.ngrams import NO_NGRAM, hash_ngrams, token_values
from shards.format.arrays import Bools, Float64s, Int64s, UInt64s
from shards.format.chat import locate_messages
from shards.format.document_table import DocumentBlock, iter_blocks
from shards.format.manifest import Split
from shards.format.reader import ShardSet
from shards.format.vocabulary import Vocabulary

NGRAM_TOKENS = 16
"""Tokens in an n-gram: about the 13 words that GPT-3's authors compared (arXiv:2005.14165, appendix C)."""
NGRAM_RATE = 4
"""One in four of the validation n-grams is searched for."""
MAX_MISPLACED = 20
BITMAP_BITS = 24


def _cut_doublings(parts: int) -> Int64s:
    """Return whole lengths from 1 to 2^32 that cut each doubling into parts, if there are."""
    return np.unique(np.ceil(np.exp2(np.arange(32 * parts + 1) / parts)).astype(np.int64))


EDGES = _cut_doublings(32)
"""The edges of the bins in which lengths are counted: a bin's middle is within 1.1% of every length in it."""
BINS = len(EDGES) - 1
COARSE_EDGES = _cut_doublings(4)
"""The edges of the bins of a histogram that is shown."""


def bin_lengths(lengths: Int64s) -> Int64s:
    """Return the bin of each length, `0 <= bin < BINS`; lengths are from 1 to 2^32 - 1."""
    return np.searchsorted(EDGES, lengths, "right") - 1


def bin_middles() -> Float64s:
    """Return the length that represents each bin, float64 `(BINS,)`."""
    return (EDGES[:-1] + EDGES[1:] - 1) / 2


def coarsen(counts: Int64s) -> dict[int, int]:
    """Return the documents by coarse bins of length, each named by its lower edge; no empty ones."""
    held = np.add.reduceat(counts, np.searchsorted(EDGES, COARSE_EDGES[:-1]))
    return {low: count for low, count in zip(COARSE_EDGES.tolist(), held.tolist(), strict=False) if count}


def quantile(counts: Int64s, share: float, *, shortest: int, longest: int) -> int:
    """Return a quantile of the lengths: that which this share of the documents is shorter than.

    Args:
        counts: documents by bin, int64 `(BINS,)`; at least one.
        share: from 0 to 1.
        shortest: tokens of the shortest document; the result is never less, although the middle of its bin may be.
        longest: tokens of the longest document.
    """
    place = int(np.searchsorted(np.cumsum(counts), share * int(counts.sum()), "left"))
    return min(max(round(float(bin_middles()[place])), shortest), longest)


class Figures:
    """The figures of one shard, or of all shards of one split: at first those of none.

    Attributes:
        split: the split.
        counts: int64 `(sources, vocab_size)`, how often each id occurs.
        documents: int64 `(vocab_size,)`, documents that hold each id.
        example: int64 `(vocab_size,)`, the place of a document that holds each id; -1 without one.
        lengths: int64 `(sources, BINS)`, documents by length in tokens, EOS included.
        shortest, longest: int64 `(sources,)`.
        misplaced: the first few documents with a special id inside (EOS before the end, or any other): place and id.
        messages: of conversations, by role; and `conversations`.
        ngrams: of validation, the hashes of sampled n-grams and the places of their documents, uint64 `(2, n)` each.
        seen: of training, which of validation's n-grams it has, bool, in the order of their hashes.

    A place is a number: the shard's, and in the lower 32 bits the document's in it.
    """

    def __init__(self, split: Split, sources: int, vocab_size: int):
        self.split: Split = split
        self.counts = np.zeros((sources, vocab_size), np.int64)
        self.documents = np.zeros(vocab_size, np.int64)
        self.example = np.full(vocab_size, -1, np.int64)
        self.lengths = np.zeros((sources, BINS), np.int64)
        self.shortest = np.full(sources, 2**32, np.int64)
        self.longest = np.zeros(sources, np.int64)
        self.misplaced: list[tuple[int, int]] = []
        self.messages = Counter[str]()
        self.ngrams = [np.zeros((2, 0), np.uint64)]
        self.seen = np.zeros(1, np.bool_)

    @property
    def id_counts(self) -> Int64s:
        """How often each id occurs, int64 `(vocab_size,)`."""
        return self.counts.sum(axis=0)

    @property
    def tokens(self) -> int:
        """Tokens of these shards."""
        return int(self.counts.sum())

    def add(self, other: Figures) -> None:
        """Add the figures of a shard."""
        self.counts += other.counts
        self.documents += other.documents
        # The first shard that holds an id gives its example.
        self.example = np.where(self.example < 0, other.example, self.example)
        self.lengths += other.lengths
        np.minimum(self.shortest, other.shortest, out=self.shortest)
        np.maximum(self.longest, other.longest, out=self.longest)
        self.misplaced = (self.misplaced + other.misplaced)[:MAX_MISPLACED]
        self.messages.update(other.messages)
        self.ngrams += other.ngrams
        self.seen = self.seen | other.seen


class Totals:
    """The figures of a whole set: of each split, both of which are always present."""

    def __init__(self, source_names: list[str], vocabulary: Vocabulary):
        self.source_names, self.vocabulary = source_names, vocabulary
        self.train = Figures("train", len(source_names), len(vocabulary))
        self.val = Figures("val", len(source_names), len(vocabulary))

    @property
    def both(self) -> tuple[Figures, Figures]:
        """Validation, then training."""
        return self.val, self.train

    @property
    def source_tokens(self) -> Int64s:
        """Tokens of each source in both splits, int64 `(sources,)`."""
        return (self.val.counts + self.train.counts).sum(axis=1)

    def add(self, figures: Figures) -> None:
        """Add the figures of a shard."""
        (self.train if figures.split == "train" else self.val).add(figures)


class ShardAudit(NamedTuple):
    """What the audit of each shard needs.

    Attributes:
        shard_set: the set.
        val_rate: one in so many validation documents is searched for in training, chosen by content hash.
        ngrams: the hashes of validation's n-grams to search training for, uint64 `(n,)`, sorted.
    """

    shard_set: ShardSet
    val_rate: int = 1
    ngrams: UInt64s = np.zeros(0, np.uint64)


def audit_shard(audit: ShardAudit, number: int) -> Figures:
    """Audit the shard of this number: read it in one pass, and return its figures.

    Raises:
        ShardSetError: the shard's files are not what the manifest says.
        OSError: a file cannot be read.
    """
    shard_set = audit.shard_set
    split = shard_set.shards[number].entry.split
    figures = Figures(split, len(shard_set.manifest.sources), shard_set.vocab_size)
    # An unknown token is special in most tokenizers, and stands for text.
    special = shard_set.vocabulary.special_mask()
    if (unknown := shard_set.vocabulary.unknown) is not None:
        special[unknown] = False
    values = token_values(shard_set.vocab_size)
    known = audit.ngrams
    figures.seen = np.zeros(len(known), np.bool_)
    bitmap = np.zeros(1 << BITMAP_BITS, np.bool_)
    bitmap[known >> np.uint64(64 - BITMAP_BITS)] = True
    for block in iter_blocks(shard_set, number):
        _count(figures, block)
        ngrams = hash_ngrams(block.tokens, block.starts, block.ends, width=NGRAM_TOKENS, values=values)
        if chat := shard_set.manifest.chat:
            messages = [*locate_messages(chat, shard_set.vocabulary, block.tokens)]
            rows = np.unique(block.rows_at(np.array([place for _, place, *_ in messages], np.int64)))
            figures.messages.update([*(role for role, *_ in messages), *["conversations"] * len(rows)])
            # Of conversations, n-grams are within a content.
            is_within = np.ones(len(ngrams), np.bool_)
            for row in rows:
                is_within[block.starts[row] : block.ends[row]] = False
            for *_, first, stop in messages:
                is_within[first : max(first, stop + 1 - NGRAM_TOKENS)] = True
            ngrams[~is_within] = NO_NGRAM
        else:
            _find_misplaced(figures, block, special, shard_set)
        places = np.flatnonzero(ngrams & np.uint64(NGRAM_RATE - 1) == 0)  # NO_NGRAM is odd: never among them
        if figures.split == "val":
            rows = block.rows_at(places)
            sampled = block.keys[rows] % np.uint64(audit.val_rate) == 0
            found = np.stack([ngrams[places], (_first_place(block) + rows).astype(np.uint64)])
            figures.ngrams.append(found[:, sampled])
        else:
            # The bitmap of leading bits rules out nearly all, at the cost of one look each.
            hashes = ngrams[places]
            hashes = hashes[bitmap[hashes >> np.uint64(64 - BITMAP_BITS)]]
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            figures.seen[at[known[at] == hashes]] = True
    return figures


def _count(figures: Figures, block: DocumentBlock) -> None:
    """Count the ids of a block, the documents that hold them, and the lengths of its documents."""
    sources, vocab_size = figures.counts.shape
    ids, lengths = block.tokens.astype(np.intp), block.lengths
    # One count over pairs of source and id.
    pairs = ids + np.repeat(block.sources * vocab_size, lengths)
    figures.counts += np.bincount(pairs, minlength=sources * vocab_size).reshape(sources, vocab_size)
    for start, end in zip(block.starts.tolist(), block.ends.tolist(), strict=True):
        # numpy adds 1 only once to an id that is repeated in the index, which counts documents.
        figures.documents[ids[start:end]] += 1
    first = _first_place(block)
    figures.example[ids] = np.repeat(np.arange(first, first + len(lengths)), lengths)
    bins = block.sources * BINS + bin_lengths(lengths)
    figures.lengths += np.bincount(bins, minlength=sources * BINS).reshape(sources, BINS)
    np.minimum.at(figures.shortest, block.sources, lengths)
    np.maximum.at(figures.longest, block.sources, lengths)


def _first_place(block: DocumentBlock) -> int:
    return block.shard << 32 | block.document


def _find_misplaced(figures: Figures, block: DocumentBlock, special: Bools, shard_set: ShardSet) -> None:
    """Find documents with a special id other than EOS at the end and BOS at the beginning."""
    inside = special[block.tokens]
    inside[block.ends - 1] &= block.tokens[block.ends - 1] != shard_set.eos_id
    if shard_set.bos_id is not None:
        inside[block.starts] &= block.tokens[block.starts] != shard_set.bos_id
    places = np.flatnonzero(inside)
    for row, place in zip(block.rows_at(places).tolist(), places.tolist(), strict=True):
        entry = (_first_place(block) + row, int(block.tokens[place]))
        if len(figures.misplaced) < MAX_MISPLACED and entry not in figures.misplaced:
            figures.misplaced.append(entry)
