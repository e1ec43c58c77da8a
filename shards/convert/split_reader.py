"""One split of a set as streams of tokens and of document lengths: the input of an export."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.errors import Problem, ShardSetError
from shards.format.documents import DocumentBatch, cut_blocks, iter_documents
from shards.format.manifest import Split
from shards.format.reader import Shard, ShardSet

if TYPE_CHECKING:
    import numpy.typing as npt

    Tokens = npt.NDArray[np.unsignedinteger[Any]]
    Lengths = npt.NDArray[np.int64]

EXPORT_BLOCK_TOKENS = 1 << 22
"""Tokens in a block of whole documents; a longer document has its own block."""


def ignore_tokens(count: int) -> None:
    """Ignore a number of tokens: the default when there is no progress to report."""


@dataclass(frozen=True)
class SplitReader:
    """One split of a set, to be exported or compared with its export.

    Attributes:
        shard_set: the set.
        split: the split; it is in the set.
        advance: called with the number of tokens read since the last call.
    """

    shard_set: ShardSet
    split: Split
    advance: Callable[[int], None] = ignore_tokens

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The split's shards, in order."""
        return self.shard_set.splits[self.split]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The tokens' dtype, little-endian."""
        return self.shard_set.dtype

    @property
    def num_tokens(self) -> int:
        """Tokens in the split."""
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def num_documents(self) -> int:
        """Documents in the split."""
        return sum(shard.num_documents for shard in self.shards)

    def iter_tokens(self) -> Iterator[Tokens]:
        """Yield the split's tokens, a frame at a time."""
        for shard in self.shards:
            yield from self.iter_shard_tokens(shard)

    def iter_shard_tokens(self, shard: Shard) -> Iterator[Tokens]:
        """Yield a shard's tokens, a frame at a time.

        Raises:
            ShardSetError: a frame is corrupt.
        """
        for tokens in shard.iter_tokens():
            yield tokens
            self.advance(len(tokens))

    def iter_lengths(self) -> Iterator[Lengths]:
        """Yield the lengths of the split's documents, EOS included, in batches."""
        for shard in self.shards:
            yield from iter_shard_lengths(shard)

    def iter_documents(self) -> Iterator[tuple[Tokens, Lengths]]:
        """Yield blocks of whole documents: their tokens end to end, and the length of each."""
        for shard in self.shards:
            for tokens, batch in self.iter_shard_documents(shard, []):
                yield tokens, read_lengths(batch)

    def iter_shard_documents(self, shard: Shard, columns: list[str]) -> Iterator[tuple[Tokens, DocumentBatch]]:
        """Yield blocks of a shard's whole documents: their tokens end to end, and `length` and `columns` of each.

        Raises:
            ShardSetError: a frame is corrupt, or the document table is.
        """
        position = 0
        for batch in _iter_checked(shard, ["length", *columns]):
            begin, ends = position, np.cumsum(read_lengths(batch))
            for first, last in cut_blocks(ends, EXPORT_BLOCK_TOKENS):
                stop = begin + int(ends[last - 1])
                yield shard.read(position, stop), batch.slice(first, last - first)
                self.advance(stop - position)
                position = stop


def iter_shard_lengths(shard: Shard) -> Iterator[Lengths]:
    """Yield the lengths of a shard's documents, EOS included, in batches.

    Raises:
        ShardSetError: the document table cannot be read, or its lengths do not match the shard's tokens.
    """
    return map(read_lengths, _iter_checked(shard, ["length"]))


def read_lengths(batch: DocumentBatch) -> Lengths:
    """Return the column `length` of a batch of a document table, int64 `(documents,)`."""
    return np.from_dlpack(batch.column("length")).astype(np.int64)


def _iter_checked(shard: Shard, columns: list[str]) -> Iterator[DocumentBatch]:
    """Yield a shard's document table in batches, and check that the lengths match the shard's tokens."""
    total = 0
    for batch in iter_documents(shard, columns):
        lengths = read_lengths(batch)
        total += int(lengths.sum())
        if total > shard.num_tokens or not lengths.all():
            break
        yield batch
    if total != shard.num_tokens:
        message = f"lengths do not add up to the shard's {shard.num_tokens} tokens, or one is 0. Build the shard again."
        raise ShardSetError([Problem("document_table", shard.entry.files.documents.path, message)])
