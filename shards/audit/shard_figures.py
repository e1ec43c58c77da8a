"""Audit one shard in one pass: counts, lengths, and samples of n-grams to compare between shards.

Counts are exact. Documents and n-grams that must be compared across the whole set are sampled by a hash of their own
content, so that equal ones are sampled together in every shard. The result of a shard has a fixed maximum size: a
histogram for each source, and the samples, whose rates (`SampleRates`) depend on the size of the set.

Cost a token on one core (measured on code): decompression and counts by source 6 ns, documents that hold each id 6,
n-grams 12.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.audit.histogram import BINS, bin_lengths
from shards.audit.ngrams import NO_NGRAM, SKETCH_SIZE, finalize, hash_ngrams, token_values
from shards.format.content_hash import split_hashes
from shards.format.document_blocks import DocumentBlock, iter_blocks
from shards.format.manifest import Split
from shards.format.reader import ShardSet

if TYPE_CHECKING:
    import numpy.typing as npt

NGRAM_TOKENS = 16
"""Tokens in an n-gram: about the 13 words that GPT-3's authors compared (arXiv:2005.14165, appendix C)."""
NGRAM_RATE = 4
"""One in four of the validation n-grams is searched for."""
PASSAGE_TOKENS = 64
"""Tokens in the n-gram that finds repeated passages: longer than a phrase."""
MIN_NGRAMS = 16
"""A document with fewer n-grams than this is too short to count as a near-duplicate."""
BITMAP_BITS = 24

NGRAM_ROW = np.dtype([("hash", "<u8"), ("document", "<i8"), ("key", "<u8")])
"""An n-gram's hash, the number of its document in the shard, and the first 64 bits of that document's hash."""


@dataclass(frozen=True)
class SampleRates:
    """Sampling rates, as one in N. Sampling is by content, so a rate holds over the set, not in each shard.

    Attributes:
        documents: documents whose n-gram sketch is kept, chosen by their smallest n-gram hash.
        passage_documents: documents whose passages are sampled, chosen by content hash.
        passages: passages kept of these documents, chosen by their hash.
        val_documents: validation documents searched for in training, chosen by content hash.
    """

    documents: int = 1
    passage_documents: int = 1
    passages: int = 1
    val_documents: int = 1


@dataclass(frozen=True)
class ShardTask:
    """One shard to audit. `ngrams` is the file of validation n-grams to search for, if any."""

    shard: int
    rates: SampleRates
    ngrams: Path | None = None
    counts_only: bool = False
    unknown: int | None = None
    """The id of unknown characters, which may be inside documents although it is special."""


@dataclass(frozen=True)
class Sketch:
    """The sampled n-grams of one document: the smallest hash, the `SKETCH_SIZE` smallest, and the document's place."""

    smallest: int
    key: int
    shard: int
    document: int
    source: int
    hashes: npt.NDArray[np.uint64]


@dataclass
class ShardFigures:
    """The figures of one shard.

    Attributes:
        counts: int64 `(sources, vocab_size)`, how often each id occurs.
        documents: int32 `(vocab_size,)`, documents that hold each id.
        example: int32 `(vocab_size,)`, a document that holds each id; -1 without one.
        lengths: int64 `(sources, BINS)`, documents by length in tokens, EOS included.
        shortest, longest: int64 `(sources,)`.
        misplaced: the first few documents with a special id inside (EOS before the end, or any other), with the id.
        passages: sampled n-grams of `PASSAGE_TOKENS` tokens, one row per document and n-gram.
        passage_documents: documents whose passages were sampled.
        ngrams: in a validation shard, sampled n-grams; in a training shard, the n-grams of validation that it has.
        sketches: the sketches of sampled documents.
    """

    split: Split
    counts: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int32]
    example: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int64]
    shortest: npt.NDArray[np.int64]
    longest: npt.NDArray[np.int64]
    misplaced: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    passages: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, NGRAM_ROW))
    passage_documents: int = 0
    ngrams: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, NGRAM_ROW))
    sketches: list[Sketch] = field(default_factory=list[Sketch])


MAX_MISPLACED = 20


def audit_shard(shard_set: ShardSet, task: ShardTask) -> ShardFigures:
    """Audit one shard: read it in one pass, and return its figures.

    Raises:
        ShardSetError: the shard's files are not what the manifest says.
        OSError: a file cannot be read.
    """
    shard = shard_set.shards[task.shard]
    sources, vocab_size = len(shard_set.manifest.sources), shard_set.vocab_size
    special = np.array(sorted({*shard_set.manifest.tokenizer.special_tokens.values()} - {task.unknown}), np.int64)
    figures = ShardFigures(
        shard.entry.split,
        np.zeros((sources, vocab_size), np.int64),
        np.zeros(vocab_size, np.int32),
        np.full(vocab_size, -1, np.int32),
        np.zeros((sources, BINS), np.int64),
        np.full(sources, 2**32, np.int64),
        np.zeros(sources, np.int64),
    )
    sampler = None if task.counts_only else _NgramSampler(task, figures, token_values(vocab_size))
    for block in iter_blocks(shard_set, shard):
        ids = block.tokens.astype(np.intp)
        lengths = block.ends - block.starts
        counted = np.bincount(
            ids + np.repeat(block.sources * vocab_size, lengths), minlength=sources * vocab_size
        ).reshape(sources, vocab_size)
        figures.counts += counted
        if task.counts_only:
            continue
        _count_documents(figures, block, ids)
        figures.lengths += np.bincount(block.sources * BINS + bin_lengths(lengths), minlength=sources * BINS).reshape(
            sources, BINS
        )
        np.minimum.at(figures.shortest, block.sources, lengths)
        np.maximum.at(figures.longest, block.sources, lengths)
        _find_misplaced(figures, block, special, shard_set, counted.sum(axis=0))
        if sampler is not None:
            sampler.add(block)
    if sampler is not None:
        sampler.finish()
    return figures


def _count_documents(figures: ShardFigures, block: DocumentBlock, ids: npt.NDArray[np.intp]) -> None:
    documents = figures.documents
    for start, end in zip(block.starts.tolist(), block.ends.tolist(), strict=True):
        # numpy adds 1 only once to an id that is repeated in the index, which counts documents.
        documents[ids[start:end]] += 1
    numbers = np.arange(block.document, block.document + len(block.starts), dtype=np.int32)
    figures.example[ids] = np.repeat(numbers, block.ends - block.starts)


def _find_misplaced(
    figures: ShardFigures,
    block: DocumentBlock,
    special: npt.NDArray[np.int64],
    shard_set: ShardSet,
    counted: npt.NDArray[np.int64],
) -> None:
    """Find documents with a special id other than EOS at the end and BOS at the beginning, if the counts show any."""
    eos_id, bos_id = shard_set.eos_id, shard_set.bos_id
    ended = block.tokens[block.ends - 1] == eos_id
    begun = np.zeros(len(block.starts), bool) if bos_id is None else block.tokens[block.starts] == bos_id
    marks = len(block.ends) * (1 if bos_id is None else 2)
    if int(counted[special].sum()) == marks == int(ended.sum() + begun.sum()):
        return
    inside = np.isin(block.tokens, special)
    inside[block.ends[ended] - 1] = False
    inside[block.starts[begun]] = False
    places = np.flatnonzero(inside)
    rows = np.searchsorted(block.ends, places, "right")
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        entry = (block.document + row, int(block.tokens[place]))
        if len(figures.misplaced) < MAX_MISPLACED and entry not in figures.misplaced:
            figures.misplaced.append(entry)


@lru_cache(maxsize=1)
def _load_ngrams(path: Path) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Return the validation n-grams, sorted, and a bitmap of their leading bits. Loaded once in each process."""
    ngrams = np.load(path)
    bitmap = np.zeros(1 << BITMAP_BITS, np.bool_)
    bitmap[ngrams >> np.uint64(64 - BITMAP_BITS)] = True
    return ngrams, bitmap


class _NgramSampler:
    """Samples the n-grams of a shard, block by block."""

    def __init__(self, task: ShardTask, figures: ShardFigures, values: npt.NDArray[np.uint64]):
        self._task, self._figures, self._values = task, figures, values
        self._passages: list[npt.NDArray[Any]] = []
        self._ngrams: list[npt.NDArray[Any]] = []
        self._wanted = _load_ngrams(task.ngrams) if task.ngrams else None

    def add(self, block: DocumentBlock) -> None:
        """Sample a block."""
        keys = split_hashes(block.hashes)[:, 0]
        if self._figures.split == "train":
            self._take_passages(block, keys)
        ngrams = hash_ngrams(block.tokens, block.starts, block.ends, width=NGRAM_TOKENS, values=self._values)
        if self._figures.split == "train":
            self._take_sketches(block, keys, ngrams)
        self._take_ngrams(block, keys, ngrams)

    def finish(self) -> None:
        """Join the samples of all blocks."""
        if self._passages:
            rows = np.concatenate(self._passages)
            order = np.lexsort((rows["key"], rows["hash"]))
            rows = rows[order]
            new = np.r_[True, (rows["hash"][1:] != rows["hash"][:-1]) | (rows["key"][1:] != rows["key"][:-1])]
            self._figures.passages = rows[new]
        if self._ngrams:
            found = np.concatenate(self._ngrams)
            if self._figures.split == "train":  # one place is enough for each
                found = found[np.unique(found["hash"], return_index=True)[1]]
            self._figures.ngrams = found

    def _take_passages(self, block: DocumentBlock, keys: npt.NDArray[np.uint64]) -> None:
        rates = self._task.rates
        chosen = np.flatnonzero(keys % np.uint64(rates.passage_documents) == 0)
        self._figures.passage_documents += len(chosen)
        lengths = (block.ends - block.starts)[chosen]
        # Shorter documents hold no n-gram of this size.
        chosen, lengths = chosen[lengths > PASSAGE_TOKENS], lengths[lengths > PASSAGE_TOKENS]
        if not len(chosen):
            return
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1])) + np.repeat(block.starts[chosen] - (ends - lengths), lengths)
        tokens = block.tokens[places]
        hashes = hash_ngrams(tokens, ends - lengths, ends, width=PASSAGE_TOKENS, values=self._values)
        kept = np.flatnonzero((hashes % np.uint64(rates.passages) == 0) & (hashes != NO_NGRAM))
        self._passages.append(_found(block, keys, hashes[kept], chosen[np.searchsorted(ends, kept, "right")]))

    def _take_sketches(
        self, block: DocumentBlock, keys: npt.NDArray[np.uint64], ngrams: npt.NDArray[np.uint64]
    ) -> None:
        smallest = np.minimum.reduceat(ngrams, block.starts)
        long = block.ends - block.starts > NGRAM_TOKENS + MIN_NGRAMS
        # Near-duplicates mostly share the smallest hash. Finalize it again, since small values are not evenly spread.
        sampled = long & (finalize(smallest + np.uint64(1)) % np.uint64(self._task.rates.documents) == 0)
        for row in np.flatnonzero(sampled).tolist():
            own = np.sort(ngrams[block.starts[row] : block.ends[row] - NGRAM_TOKENS])
            own = own[np.r_[True, own[1:] != own[:-1]]]  # np.unique hashes first: ten times as slow here
            sketch = Sketch(
                int(own[0]),
                int(keys[row]),
                self._task.shard,
                block.document + row,
                int(block.sources[row]),
                own[:SKETCH_SIZE].copy(),
            )
            self._figures.sketches.append(sketch)

    def _take_ngrams(self, block: DocumentBlock, keys: npt.NDArray[np.uint64], ngrams: npt.NDArray[np.uint64]) -> None:
        if self._figures.split == "train" and self._wanted is None:
            return
        places = np.flatnonzero(ngrams & np.uint64(NGRAM_RATE - 1) == 0)  # NO_NGRAM is odd: never among them
        if self._wanted is not None and self._figures.split == "train":
            known, bitmap = self._wanted
            hashes = ngrams[places]
            maybe = bitmap[hashes >> np.uint64(64 - BITMAP_BITS)]
            places, hashes = places[maybe], hashes[maybe]
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            places = places[known[at] == hashes] if len(known) else places[:0]
        rows = np.searchsorted(block.ends, places, "right")
        if self._figures.split == "val":
            mine = keys[rows] % np.uint64(self._task.rates.val_documents) == 0
            places, rows = places[mine], rows[mine]
        if len(places):
            self._ngrams.append(_found(block, keys, ngrams[places], rows))


def _found(
    block: DocumentBlock, keys: npt.NDArray[np.uint64], hashes: npt.NDArray[np.uint64], rows: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    found = np.empty(len(hashes), NGRAM_ROW)
    found["hash"], found["document"], found["key"] = hashes, rows + block.document, keys[rows]
    return found
