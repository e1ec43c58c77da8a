"""Read a shard's documents: its table in batches, or with their tokens, in blocks of whole documents.

`shards.format.shard.iter_documents` checks its columns. Memory does not depend on the size of the shard: a batch of the
table, and for blocks a frame and `BLOCK_TOKENS`, or the longest document if that is longer. Reading blocks checks that
documents are contiguous, sources are known, and ids are inside the vocabulary.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shards.errors import plural
from shards.format.arrays import Int32s, Int64s, Rows, Tokens, UInt8s, UInt64s
from shards.format.content_hash import read_column, split_hashes
from shards.format.manifest import SourceCounts
from shards.format.reader import ShardSet
from shards.format.shard import DocumentBatch, Shard, iter_documents

if TYPE_CHECKING:
    import pyarrow as pa


def number_sources(
    shard: Shard, batch: DocumentBatch, numbers: Mapping[str, int], *, default: int | None = None
) -> Int64s:
    """Return the number that `numbers` gives to the source of each row of a document table, int64 `(documents,)`.

    Args:
        shard: the shard that the batch belongs to.
        batch: a batch of its document table, with the column `source`.
        numbers: a number for each source.
        default: the number for a source that is not in `numbers`.

    Raises:
        ShardSetError: a source has no number.
    """
    # A dictionary column: each name is looked up once, not once a document.
    source = batch.column("source")
    names: list[str] = source.dictionary.to_pylist()
    if default is None and (unknown := [name for name in names if name not in numbers]):
        raise shard.wrong_table(f"source {unknown[0]!r} is not in the manifest; expected {list(numbers)!s:.200}")
    codes = cast("Int32s", np.from_dlpack(source.indices))
    return np.array([numbers.get(name, default) for name in names], np.int64)[codes]


def read_sources(shard: Shard, numbers: Mapping[str, int]) -> tuple[Int64s, Int64s]:
    """Return the length of each document of a table, and its source's number by `numbers`; int64 `(documents,)`.

    Raises:
        ShardSetError: the document table names a source that has no number.
    """
    lengths, sources = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for batch, own, _ in iter_checked_documents(shard, ["source"]):
        lengths.append(own)
        sources.append(number_sources(shard, batch, numbers))
    return np.concatenate(lengths), np.concatenate(sources)


def number_token_sources(shard: Shard, numbers: Mapping[str, int], stop: int) -> Int64s:
    """Return the number, by `numbers`, of the source of each token in [0, stop) by the document table, int64 `(stop,)`.

    Raises:
        ShardSetError: the document table names a source that has no number.
    """
    lengths, sources = read_sources(shard, numbers)
    # Only the documents that begin before `stop` have tokens there.
    documents = int(np.searchsorted(np.cumsum(lengths), stop)) + 1
    return np.repeat(sources[:documents], lengths[:documents])[:stop]


def iter_shard_lengths(shard: Shard) -> Iterator[Int64s]:
    """Yield the lengths in a shard's document table, EOS included, in batches. Raises as `iter_checked_documents`."""
    return (lengths for _, lengths, _ in iter_checked_documents(shard, []))


def read_lengths(batch: DocumentBatch) -> Int64s:
    """Return the column `length` of a batch of a document table, int64 `(documents,)`."""
    return np.from_dlpack(batch.column("length")).astype(np.int64)


def iter_checked_documents(shard: Shard, columns: list[str]) -> Iterator[tuple[DocumentBatch, Int64s, Int64s]]:
    """Yield a shard's document table in batches, and check that its documents are all of the shard's tokens.

    Yields:
        A batch with `columns`, `start` and `length`; the lengths; and where each document ends in the shard.

    Raises:
        ShardSetError: the document table cannot be read, or a document is empty or does not follow the one before.
    """
    row = total = 0
    for batch in iter_documents(shard, ["start", "length", *columns]):
        lengths = read_lengths(batch)
        ends = total + np.cumsum(lengths)
        begins = np.from_dlpack(batch.column("start"))
        wrong = np.flatnonzero(
            (begins != (ends - lengths).astype(np.uint64)) | (lengths < 1) | (ends > shard.num_tokens)
        )
        if len(wrong):
            at = int(wrong[0])
            raise shard.wrong_table(
                f"document {row + at} has {plural(lengths[at], 'token')} from {begins[at]:,}; expected at least 1 from "
                f"{ends[at] - lengths[at]:,}, and at most {shard.num_tokens:,} in all"
            )
        yield batch, lengths, ends
        row, total = row + len(lengths), total + int(lengths.sum())
    if total != shard.num_tokens:
        # The table may end too early, which no single row tells.
        expected = plural(shard.num_tokens, "token")
        raise shard.wrong_table(f"lengths add up to {total}; expected {expected} by the manifest")


def count_sources(documents: pa.Table) -> dict[str, SourceCounts]:
    """Add up a document table by source, sources in alphabetical order."""
    sums: dict[str, list[int]] = {}
    for batch in documents.select(["source", "length"]).to_batches():
        add_source_counts(batch, sums)
    return {source: SourceCounts(tokens=tokens, documents=rows) for source, (tokens, rows, _) in sorted(sums.items())}


def add_source_counts(batch: pa.RecordBatch, sums: dict[str, list[int]]) -> None:
    """Add a batch of a document table to `sums`: tokens, documents and the longest document's tokens of each source.

    Arrow's own `group_by` would work, but it loads pandas and the query engine: 0.4 s in each process, measured.
    """
    # A dictionary may name sources that this batch has no document of.
    lengths, column = read_lengths(batch), cast("Any", batch.column("source"))
    codes: Any = np.from_dlpack(column.indices)
    for code, source in enumerate(column.dictionary.to_pylist()):
        own = lengths[codes == code]
        if len(own):
            tokens, documents, longest = sums.get(source, [0, 0, 0])
            sums[source] = [tokens + int(own.sum()), documents + len(own), max(longest, int(own.max()))]


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
    document = 0
    frames = shard.iter_tokens()
    left: Rows = np.empty(0, shard.dtype)
    for batch, lengths, ends in iter_checked_documents(shard, ["source", "hash"]):
        sources, hashes = number_sources(shard, batch, shard_set.source_numbers), read_column(batch.column("hash"))
        for first, last in cut_blocks(lengths, BLOCK_TOKENS):
            # Take the block's tokens: the rest of a frame, and of as many frames as it needs.
            stops = ends[first:last] - (ends[first] - lengths[first])
            parts, count = [left], int(stops[-1])
            while (missing := count - sum(map(len, parts))) > 0:
                parts.append(next(frames))
            taken = parts[0] if len(parts) == 1 else np.concatenate(parts)
            taken, left = taken[:count], parts[-1][len(parts[-1]) + missing :]
            here = slice(first, last)
            yield DocumentBlock(number, document, taken, stops - lengths[here], stops, sources[here], hashes[here])
            document += last - first


def cut_blocks(lengths: Int64s, block_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield blocks of documents of these lengths, as ranges [first, last) of at most `block_tokens` tokens.

    A longer document is a block.
    """
    first, ends = 0, np.cumsum(lengths)
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + block_tokens, "right")))
        yield first, last
        first = last
