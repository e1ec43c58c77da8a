"""The interface of a layout, and its input: one split of a set, as streams of tokens and of document lengths.

Tokens come frame by frame (1 MiB), or in blocks of whole documents of about 8 MB; document tables in batches. So memory
does not grow with the set, only with its longest document where a layout stores documents one by one.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shards.convert.layouts import LAYOUTS, UINT16_LAYOUTS
from shards.errors import Problem, ShardSetError
from shards.format.documents import cut_blocks, iter_documents
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
            position = 0
            for lengths in iter_shard_lengths(shard):
                for first, last in cut_blocks(np.cumsum(lengths), EXPORT_BLOCK_TOKENS):
                    stop = position + int(lengths[first:last].sum())
                    yield shard.read(position, stop), lengths[first:last]
                    self.advance(stop - position)
                    position = stop


class Layout(Protocol):
    """A module of this package that knows one layout."""

    USAGE: str
    """How to load the result; `{out}` is its folder, `{split}` a split, `{token_size}` the bytes of a token."""

    def find_obstacles(self, reader: SplitReader) -> list[str]:
        """Return the reasons why the layout cannot hold a split, if any. Reads lengths at most, never tokens."""
        ...

    def write_split(self, folder: Path, reader: SplitReader) -> None:
        """Write a split into the export's folder."""
        ...

    def read_tokens(self, folder: Path, reader: SplitReader) -> Iterator[Tokens]:
        """Read a split's tokens back from the files alone."""
        ...

    def read_lengths(self, folder: Path, reader: SplitReader) -> Iterator[Lengths]:
        """Read the lengths of a split's documents back from the files alone."""
        ...


def iter_shard_lengths(shard: Shard) -> Iterator[Lengths]:
    """Yield the lengths of a shard's documents, EOS included, in batches.

    Raises:
        ShardSetError: the document table cannot be read, or its lengths are not those of the shard's tokens.
    """
    total = 0
    for batch in iter_documents(shard, ["length"]):
        lengths: Lengths = np.from_dlpack(batch.column("length")).astype(np.int64)
        total += int(lengths.sum())
        if total > shard.num_tokens or not lengths.all():
            break
        yield lengths
    if total != shard.num_tokens:
        message = f"lengths do not add up to the shard's {shard.num_tokens} tokens, or one is 0. Build the shard again."
        raise ShardSetError([Problem("document_table", shard.entry.files.documents.path, message)])


def refuse_uint32(reader: SplitReader, loader: str) -> list[str]:
    """Return why a loader that reads uint16 cannot read the set: its vocabulary is too large; nothing if it can."""
    if reader.dtype.itemsize == 2:
        return []
    *most, last = (name for name in LAYOUTS if name not in UINT16_LAYOUTS)
    size = reader.shard_set.vocab_size
    return [f"{loader} reads uint16; a vocabulary of {size} does not fit. Use {', '.join(most)} or {last}."]


def longest_document(reader: SplitReader) -> int:
    """Return the tokens of the split's longest document, EOS included."""
    return max((int(lengths.max()) for lengths in reader.iter_lengths()), default=0)


def read_array(path: Path, dtype: np.dtype[Any], *, offset: int = 0) -> Iterator[Any]:
    """Yield a file's array from a byte offset to its end, in blocks.

    Raises:
        ValueError: what follows the offset is not a whole number of elements.
    """
    size = path.stat().st_size - offset
    if size < 0 or size % dtype.itemsize:
        raise ValueError(f"{path.name}: {size} bytes of {dtype.name}; expected a multiple of {dtype.itemsize}")
    with path.open("rb") as file:
        file.seek(offset)
        while data := file.read(EXPORT_BLOCK_TOKENS * dtype.itemsize):
            yield np.frombuffer(data, dtype)


def split_at_eos(blocks: Iterator[Tokens], eos_id: int) -> Iterator[Lengths]:
    """Yield the lengths of the documents of a stream, EOS included; a rest without EOS is the last document."""
    position = last = 0
    for tokens in blocks:
        ends: Lengths = np.flatnonzero(tokens == eos_id).astype(np.int64) + (position + 1)
        position += len(tokens)
        if len(ends):
            yield np.diff(ends, prepend=last)
            last = int(ends[-1])
    if last < position:
        yield np.array([position - last], np.int64)
