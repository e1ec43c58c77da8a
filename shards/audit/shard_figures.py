"""Audit one shard in one pass: counts, lengths, and samples of n-grams to compare between shards.

Counts are exact. N-grams that must be compared across the whole set are sampled by a hash of their own content, so that
equal ones are sampled together in every shard. The result of a shard has a fixed maximum size: a histogram for each
source, and the sample, whose rate depends on the size of validation.

Cost a token on one core (measured on code): decompression and counts by source 6 ns, documents that hold each id 6,
n-grams 12.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shards.audit.histogram import BINS, bin_lengths
from shards.audit.ngrams import hash_ngrams, token_values
from shards.audit.totals import (
    NGRAM_ROW,
    Figures,
    encode_place,
    join_ngrams,
    make_figures,
)
from shards.format.arrays import Bools, Int64s, Rows, UInt64s
from shards.format.document_blocks import DocumentBlock, iter_blocks
from shards.format.reader import ShardSet

NGRAM_TOKENS = 16
"""Tokens in an n-gram: about the 13 words that GPT-3's authors compared (arXiv:2005.14165, appendix C)."""
NGRAM_RATE = 4
"""One in four of the validation n-grams is searched for."""
MAX_MISPLACED = 20
BITMAP_BITS = 24


class ShardAudit(NamedTuple):
    """What the audit of each shard needs.

    Attributes:
        shard_set: the set.
        val_rate: one in so many validation documents is searched for in training, chosen by content hash.
        ngrams: the file of validation n-grams to search for, if any.
    """

    shard_set: ShardSet
    val_rate: int = 1
    ngrams: Path | None = None


def audit_shard(audit: ShardAudit, number: int) -> Figures:
    """Audit the shard of this number: read it in one pass, and return its figures.

    Raises:
        ShardSetError: the shard's files are not what the manifest says.
        OSError: a file cannot be read.
    """
    shard_set = audit.shard_set
    sources, vocab_size = len(shard_set.manifest.sources), shard_set.vocab_size
    figures = make_figures(shard_set.shards[number].entry.split, sources, vocab_size)
    # An unknown token is special in most tokenizers, and stands for text.
    special = shard_set.vocabulary.special_mask()
    if (unknown := shard_set.vocabulary.unknown) is not None:
        special[unknown] = False
    values = token_values(vocab_size)
    found: list[Rows] = []
    for block in iter_blocks(shard_set, number):
        _count(figures, block, sources, vocab_size)
        _find_misplaced(figures, block, special, shard_set)
        ngrams = hash_ngrams(block.tokens, block.starts, block.ends, width=NGRAM_TOKENS, values=values)
        places = np.flatnonzero(ngrams & np.uint64(NGRAM_RATE - 1) == 0)  # NO_NGRAM is odd: never among them
        if figures.split == "train":
            places = _find_validation(ngrams, places, audit.ngrams)
        else:
            places = places[block.keys[block.rows_at(places)] % np.uint64(audit.val_rate) == 0]
        found.append(_locate(block, ngrams[places], block.rows_at(places)))
    figures.add_ngrams(join_ngrams(found))
    figures.shards += figures.documents > 0
    return figures


def _count(figures: Figures, block: DocumentBlock, sources: int, vocab_size: int) -> None:
    """Count the ids of a block, the documents that hold them, and the lengths of its documents."""
    ids, lengths = block.tokens.astype(np.intp), block.lengths
    # One count over pairs of source and id.
    pairs = ids + np.repeat(block.sources * vocab_size, lengths)
    figures.counts += np.bincount(pairs, minlength=sources * vocab_size).reshape(sources, vocab_size)
    for start, end in zip(block.starts.tolist(), block.ends.tolist(), strict=True):
        # numpy adds 1 only once to an id that is repeated in the index, which counts documents.
        figures.documents[ids[start:end]] += 1
    first = encode_place(block.shard, block.document)
    figures.example[ids] = np.repeat(np.arange(first, first + len(lengths)), lengths)
    bins = block.sources * BINS + bin_lengths(lengths)
    figures.lengths += np.bincount(bins, minlength=sources * BINS).reshape(sources, BINS)
    np.minimum.at(figures.shortest, block.sources, lengths)
    np.maximum.at(figures.longest, block.sources, lengths)


def _find_misplaced(figures: Figures, block: DocumentBlock, special: Bools, shard_set: ShardSet) -> None:
    """Find documents with a special id other than EOS at the end and BOS at the beginning."""
    inside = special[block.tokens]
    inside[block.ends - 1] &= block.tokens[block.ends - 1] != shard_set.eos_id
    if shard_set.bos_id is not None:
        inside[block.starts] &= block.tokens[block.starts] != shard_set.bos_id
    places = np.flatnonzero(inside)
    for row, place in zip(block.rows_at(places).tolist(), places.tolist(), strict=True):
        entry = (block.shard, block.document + row, int(block.tokens[place]))
        if len(figures.misplaced) < MAX_MISPLACED and entry not in figures.misplaced:
            figures.misplaced.append(entry)


@lru_cache(maxsize=1)
def _load_ngrams(path: Path) -> tuple[UInt64s, Bools]:
    """Return the validation n-grams, sorted, and a bitmap of their leading bits. Loaded once in each process."""
    ngrams = np.load(path)
    bitmap = np.zeros(1 << BITMAP_BITS, np.bool_)
    bitmap[ngrams >> np.uint64(64 - BITMAP_BITS)] = True
    return ngrams, bitmap


def _find_validation(ngrams: UInt64s, places: Int64s, wanted: Path | None) -> Int64s:
    """Return the places of a training block at which an n-gram of validation begins."""
    if wanted is None:
        return places[:0]
    known, bitmap = _load_ngrams(wanted)
    # The bitmap rules out nearly all, at the cost of one look each.
    places = places[bitmap[ngrams[places] >> np.uint64(64 - BITMAP_BITS)]]
    hashes = ngrams[places]
    at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return places[known[at] == hashes]


def _locate(block: DocumentBlock, hashes: UInt64s, rows: Int64s) -> Rows:
    """Return n-grams of some rows of a block with their place, `NGRAM_ROW`."""
    found = np.empty(len(hashes), NGRAM_ROW)
    found["hash"], found["document"], found["shard"] = hashes, rows + block.document, block.shard
    return found
