"""The interface of a layout: the split that it writes, and what several layouts share.

Tokens come frame by frame (1 MiB), or in blocks of whole documents of about 8 MB; document tables in batches. So memory
does not grow with the set, only with its longest document if the layout stores whole documents.
"""

# pyright: reportUnknownMemberType=false
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO

from shards.format.arrays import Int64s, Tokens
from shards.format.document_table import cut_blocks, iter_checked_documents, iter_shard_lengths
from shards.format.manifest import Split
from shards.format.reader import ShardSet
from shards.format.shard import DocumentBatch, Shard, Shards
from shards.terminal.reporter import Advance

EXPORT_BLOCK_TOKENS = 1 << 22
"""Tokens in a block of whole documents; a longer document has its own block."""


@dataclass(frozen=True)
class SplitReader:
    """One split of a set, to be exported.

    Attributes:
        shard_set: the set.
        split: the split; it is in the set.
        advance: called with the number of tokens read since the last call.
    """

    shard_set: ShardSet
    split: Split
    advance: Advance

    @property
    def shards(self) -> Shards:
        """The shards of the split, in order."""
        return self.shard_set.splits[self.split]

    def iter_tokens(self) -> Iterator[Tokens]:
        """Yield the tokens of the split, a frame at a time."""
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

    def iter_lengths(self) -> Iterator[Int64s]:
        """Yield the lengths of the split's documents, EOS included, in batches."""
        for shard in self.shards:
            yield from iter_shard_lengths(shard)

    def iter_shard_documents(self, shard: Shard, columns: list[str]) -> Iterator[tuple[Tokens, DocumentBatch]]:
        """Yield blocks of a shard's documents: tokens end to end, `length` and `columns` of each.

        Raises:
            ShardSetError: a frame is corrupt, or the document table is.
        """
        for batch, lengths, ends in iter_checked_documents(shard, columns):
            for first, last in cut_blocks(lengths, EXPORT_BLOCK_TOKENS):
                start, stop = int(ends[first] - lengths[first]), int(ends[last - 1])
                yield shard.read(start, stop), batch.slice(first, last - first)
                self.advance(stop - start)


OpenFile = Callable[[str], AbstractContextManager[BinaryIO]]
"""Opens a file of an export, by its path there, to write it."""
