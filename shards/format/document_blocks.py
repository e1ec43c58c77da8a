"""Blocks of whole documents, in which a shard is read. The audit and the trace read sets this way.

One pass reads the tokens file and the document table together. Memory does not depend on the size of the shard: a
frame, a block (`BLOCK_TOKENS`, or the longest document if that is longer) and a batch of the table. The pass checks
that documents are contiguous, sources are known, and ids are inside the vocabulary.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shards.errors import plural, set_error
from shards.format.arrays import Int64s, Rows, Tokens, UInt8s, UInt64s
from shards.format.content_hash import read_column, split_hashes
from shards.format.document_table import iter_documents, number_sources, read_lengths
from shards.format.reader import Shard, ShardSet

BLOCK_TOKENS = 1 << 16
"""Approximate tokens in a block. Arrays of 8 bytes per token then stay in a core's cache, which halves the time."""


@dataclass(frozen=True)
class DocumentBlock:
    """Consecutive whole documents of a shard.

    Attributes:
        shard: the shard's number in the manifest.
        document: number of the first document in the shard.
        tokens: uint16 or uint32 `(tokens,)`, read only.
        starts: int64 `(documents,)`, each document's first token in `tokens`.
        ends: int64 `(documents,)`, one past its last, which is EOS.
        sources: int64 `(documents,)`, index among the manifest's sources.
        hashes: uint8 `(documents, 16)`, content hashes.
    """

    shard: int
    document: int
    tokens: Tokens
    starts: Int64s
    ends: Int64s
    sources: Int64s
    hashes: UInt8s

    @property
    def lengths(self) -> Int64s:
        """Tokens of each document of the block, EOS included."""
        return self.ends - self.starts

    @cached_property
    def keys(self) -> UInt64s:
        """The first 64 bits of the content hash of each document of the block."""
        return split_hashes(self.hashes)[:, 0]

    def rows_at(self, places: Int64s) -> Int64s:
        """Return the document of the block that holds each of some tokens."""
        return np.searchsorted(self.ends, places, "right")


def iter_blocks(shard_set: ShardSet, number: int) -> Iterator[DocumentBlock]:
    """Yield the documents of the shard of this number, in order, in document blocks of about `BLOCK_TOKENS`.

    Raises:
        ShardSetError: the shard's files are not what the manifest says, or an id is outside the vocabulary.
        OSError: a file cannot be read.
    """
    shard = shard_set.shards[number]
    document = start = 0
    held = _iter_frames(shard, shard_set.vocab_size)
    left: Rows = np.empty(0, shard.dtype)
    for batch in iter_documents(shard, ["start", "length", "source", "hash"]):
        lengths, sources = read_lengths(batch), number_sources(shard, batch, shard_set.source_numbers)
        hashes = read_column(batch.column("hash"))
        # Where each document of the batch ends, counted from the batch's first token.
        ends = np.cumsum(lengths)
        # No document may be empty, and each begins where the one before ended.
        begins = np.from_dlpack(batch.column("start")).astype(np.uint64)
        expected = (start + ends - lengths).astype(np.uint64)
        wrong = np.flatnonzero((begins != expected) | (lengths < 1))
        if len(wrong):
            at = int(wrong[0])
            raise shard.wrong_table(
                f"document {document + at} has {plural(lengths[at], 'token')} from {begins[at]}; expected from "
                f"{expected[at]}"
            )
        for first, last in cut_blocks(ends, BLOCK_TOKENS):
            # Take the block's tokens: the rest of a frame, and of as many frames as it needs.
            stops = ends[first:last] - (ends[first] - lengths[first])
            parts, count = [left], int(stops[-1])
            while (missing := count - sum(map(len, parts))) > 0:
                parts.append(next(held))
            taken = parts[0] if len(parts) == 1 else np.concatenate(parts)
            taken, left = taken[:count], parts[-1][len(parts[-1]) + missing :]
            here = slice(first, last)
            yield DocumentBlock(number, document, taken, stops - lengths[here], stops, sources[here], hashes[here])
            document += last - first
            start += count
    if start != shard.num_tokens:
        # The table may end too early, which no single row tells.
        total = plural(shard.num_tokens, "token")
        raise shard.wrong_table(f"lengths add up to {start}; expected {total} by the manifest")


def _iter_frames(shard: Shard, vocab_size: int) -> Iterator[Tokens]:
    """Yield a shard's tokens frame by frame; refuse an id outside the vocabulary, and a read after the last frame."""
    name = shard.tokens_file.name
    for frame in shard.iter_tokens():
        if (most := int(frame.max())) >= vocab_size:
            message = f"holds the id {most}; expected less than vocab_size {vocab_size}. Validate the set."
            raise set_error("token_out_of_range", name, message)
        yield frame
    raise set_error(
        "document_table", name, "the document table has more tokens than the tokens file. Copy or build it again."
    )


def cut_blocks(ends: Int64s, block_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield the document blocks as ranges [first, last) of at most `block_tokens` tokens; a longer document is a block.

    Args:
        ends: one past each document's last token, int64 `(documents,)`, ascending; the first document begins at 0.
        block_tokens: the maximum number of tokens in a range.
    """
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + block_tokens, "right")))
        yield first, last
        first = last
