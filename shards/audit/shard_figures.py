"""Audit one shard in one pass: counts, lengths, and samples of n-grams to compare between shards.

Counts are exact. Documents and n-grams that must be compared across the whole set are sampled by a hash of their own
content, so that equal ones are sampled together in every shard. The result of a shard has a fixed maximum size: a
histogram for each source, and the samples, whose rates (`SampleRates`) depend on the size of the set.

Cost a token on one core (measured on code): decompression and counts by source 6 ns, documents that hold each id 6,
n-grams 12.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shards.audit.histogram import BINS, bin_lengths
from shards.audit.ngrams import NO_NGRAM, SKETCH_SIZE, finalize, hash_ngrams, token_values
from shards.audit.spread import find_firsts
from shards.audit.totals import NGRAM_ROW, Figures, Sketch, distinct_ngrams, encode_place, join_ngrams, make_figures
from shards.format.arrays import Bools, Int64s, Rows, UInt64s
from shards.format.content_hash import split_hashes
from shards.format.document_blocks import DocumentBlock, iter_blocks
from shards.format.reader import ShardSet

if TYPE_CHECKING:
    pass

NGRAM_TOKENS = 16
"""Tokens in an n-gram: about the 13 words that GPT-3's authors compared (arXiv:2005.14165, appendix C)."""
NGRAM_RATE = 4
"""One in four of the validation n-grams is searched for."""
PASSAGE_TOKENS = 64
"""Tokens in the n-gram that finds repeated passages: longer than a phrase."""
MIN_NGRAMS = 16
"""A document with fewer n-grams than this is too short to count as a near-duplicate."""
MAX_MISPLACED = 20
BITMAP_BITS = 24


class SampleRates(NamedTuple):
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


class ShardAudit(NamedTuple):
    """What the audit of each shard needs.

    Attributes:
        shard_set: the set.
        rates: the rates of its samples.
        ngrams: the file of validation n-grams to search for, if any.
    """

    shard_set: ShardSet
    rates: SampleRates
    ngrams: Path | None = None


def audit_shard(audit: ShardAudit, number: int) -> Figures:
    """Audit the shard of this number: read it in one pass, and return its figures.

    Raises:
        ShardSetError: the shard's files are not what the manifest says.
        OSError: a file cannot be read.
    """
    shard_set = audit.shard_set
    shard = shard_set.shards[number]
    sources, vocab_size = len(shard_set.manifest.sources), shard_set.vocab_size
    special = sorted({*shard_set.manifest.tokenizer.special_tokens.values()} - {shard_set.vocabulary.unknown})
    figures = make_figures(shard.entry.split, sources, vocab_size)
    values = token_values(vocab_size)
    found: list[Rows] = []
    for block in iter_blocks(shard_set, shard):
        ids = block.tokens.astype(np.intp)
        lengths = block.ends - block.starts
        # One count over pairs of source and id.
        pairs = ids + np.repeat(block.sources * vocab_size, lengths)
        counted = np.bincount(pairs, minlength=sources * vocab_size).reshape(sources, vocab_size)
        figures.counts += counted
        _count_documents(figures, block, ids, number)
        bins = block.sources * BINS + bin_lengths(lengths)
        figures.lengths += np.bincount(bins, minlength=sources * BINS).reshape(sources, BINS)
        np.minimum.at(figures.shortest, block.sources, lengths)
        np.maximum.at(figures.longest, block.sources, lengths)
        _find_misplaced(figures, block, np.array(special, np.int64), shard_set, counted.sum(axis=0), number)
        # N-grams of 16 tokens are hashed once, for sketches and for the search of validation.
        keys = split_hashes(block.hashes)[:, 0]
        ngrams = hash_ngrams(block.tokens, block.starts, block.ends, width=NGRAM_TOKENS, values=values)
        if figures.split == "train":
            _take_passages(figures, block, keys, values, audit.rates, number)
            _take_sketches(figures, block, keys, ngrams, audit.rates, number)
            places = _find_validation(ngrams, audit.ngrams)
        else:
            places = np.flatnonzero(ngrams & np.uint64(NGRAM_RATE - 1) == 0)  # NO_NGRAM is odd: never among them
        rows = np.searchsorted(block.ends, places, "right")
        if figures.split == "val":
            chosen = keys[rows] % np.uint64(audit.rates.val_documents) == 0
            places, rows = places[chosen], rows[chosen]
        found.append(_found(block, keys, ngrams[places], rows, number))
    figures.add_ngrams(join_ngrams(found))
    figures.shards += figures.documents > 0
    return figures


def _count_documents(figures: Figures, block: DocumentBlock, ids: Int64s, shard: int) -> None:
    documents = figures.documents
    for start, end in zip(block.starts.tolist(), block.ends.tolist(), strict=True):
        # numpy adds 1 only once to an id that is repeated in the index, which counts documents.
        documents[ids[start:end]] += 1
    first = encode_place(shard, block.document)
    numbers = np.arange(first, first + len(block.starts))
    figures.example[ids] = np.repeat(numbers, block.ends - block.starts)


def _find_misplaced(
    figures: Figures,
    block: DocumentBlock,
    special: Int64s,
    shard_set: ShardSet,
    counted: Int64s,
    shard: int,
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
        entry = (shard, block.document + row, int(block.tokens[place]))
        if len(figures.misplaced) < MAX_MISPLACED and entry not in figures.misplaced:
            figures.misplaced.append(entry)


@lru_cache(maxsize=1)
def _load_ngrams(path: Path) -> tuple[UInt64s, Bools]:
    """Return the validation n-grams, sorted, and a bitmap of their leading bits. Loaded once in each process."""
    ngrams = np.load(path)
    bitmap = np.zeros(1 << BITMAP_BITS, np.bool_)
    bitmap[ngrams >> np.uint64(64 - BITMAP_BITS)] = True
    return ngrams, bitmap


def _find_validation(ngrams: UInt64s, wanted: Path | None) -> Int64s:
    """Return the tokens of a training block at which an n-gram of validation begins."""
    if wanted is None:
        return np.empty(0, np.int64)
    known, bitmap = _load_ngrams(wanted)
    places = np.flatnonzero(ngrams & np.uint64(NGRAM_RATE - 1) == 0)
    # The bitmap rules out nearly all, at the cost of one look each.
    places = places[bitmap[ngrams[places] >> np.uint64(64 - BITMAP_BITS)]]
    hashes = ngrams[places]
    at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return places[known[at] == hashes]


def _take_passages(
    figures: Figures,
    block: DocumentBlock,
    keys: UInt64s,
    values: UInt64s,
    rates: SampleRates,
    shard: int,
) -> None:
    chosen = np.flatnonzero(keys % np.uint64(rates.passage_documents) == 0)
    figures.passage_documents += len(chosen)
    lengths = (block.ends - block.starts)[chosen]
    # Shorter documents hold no n-gram of this size.
    chosen, lengths = chosen[lengths > PASSAGE_TOKENS], lengths[lengths > PASSAGE_TOKENS]
    if not len(chosen):
        return
    ends = np.cumsum(lengths)
    places = np.arange(int(ends[-1])) + np.repeat(block.starts[chosen] - (ends - lengths), lengths)
    hashes = hash_ngrams(block.tokens[places], ends - lengths, ends, width=PASSAGE_TOKENS, values=values)
    kept = np.flatnonzero((hashes % np.uint64(rates.passages) == 0) & (hashes != NO_NGRAM))
    rows = chosen[np.searchsorted(ends, kept, "right")]
    figures.passages.append(distinct_ngrams(_found(block, keys, hashes[kept], rows, shard)))


def _take_sketches(
    figures: Figures,
    block: DocumentBlock,
    keys: UInt64s,
    ngrams: UInt64s,
    rates: SampleRates,
    shard: int,
) -> None:
    smallest = np.minimum.reduceat(ngrams, block.starts)
    long = block.ends - block.starts > NGRAM_TOKENS + MIN_NGRAMS
    # Near-duplicates mostly share the smallest hash. Finalize it again, since small values are not evenly spread.
    sampled = long & (finalize(smallest + np.uint64(1)) % np.uint64(rates.documents) == 0)
    for row in np.flatnonzero(sampled).tolist():
        own = np.sort(ngrams[block.starts[row] : block.ends[row] - NGRAM_TOKENS])
        own = own[find_firsts(own)]  # np.unique hashes first: ten times as slow here
        figures.sketches.append(Sketch(int(keys[row]), shard, block.document + row, own[:SKETCH_SIZE].copy()))


def _found(
    block: DocumentBlock,
    keys: UInt64s,
    hashes: UInt64s,
    rows: Int64s,
    shard: int,
) -> Rows:
    found = np.empty(len(hashes), NGRAM_ROW)
    found["hash"], found["document"], found["key"] = hashes, rows + block.document, keys[rows]
    found["shard"] = shard
    return found
