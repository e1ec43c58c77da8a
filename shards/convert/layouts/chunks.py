"""The layout that MDS shards and LitData chunks share: a count, offsets of items, the items, in files up to 64 MiB.

An item is a document. Files are cut between documents, when the next would pass the limit; a longer document has a
file to itself. One file is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shards.convert.layouts.layout import longest_layout_document
from shards.errors import plural

if TYPE_CHECKING:
    from shards.convert.split_reader import SplitReader

MAX_CHUNK_BYTES = 1 << 26
"""Both libraries' usual size: 64 MiB, small enough to download one while another is read."""

_HEADROOM = 1 << 12
"""Bytes kept free below 4 GiB for the head of a file with one document."""


@dataclass
class Chunk:
    """A file's items: the size of each in bytes, and their content in parts."""

    sizes: list[int] = field(default_factory=list[int])
    parts: list[bytes | memoryview] = field(default_factory=list[bytes | memoryview])

    @property
    def body(self) -> bytes:
        """The items' content, end to end."""
        return b"".join(self.parts)

    def pack_offsets(self, description_bytes: int = 0) -> bytes:
        """Return the number of items and the offset of each from the file's start, and of the end, as uint32."""
        offsets = np.zeros(len(self.sizes) + 1, np.int64)
        np.cumsum(self.sizes, out=offsets[1:])
        offsets += 4 + 4 * len(offsets) + description_bytes
        return np.uint32(len(self.sizes)).astype("<u4").tobytes() + offsets.astype("<u4").tobytes()

    @classmethod
    def parse(cls, data: bytes, description: bytes = b"") -> Chunk:
        """Read a file back; its items are one part.

        Raises:
            ValueError: offsets or description are not as they should be.
        """
        count = int.from_bytes(data[:4], "little")
        head = 4 + 4 * (count + 1)
        if len(data) < head:
            raise ValueError(f"{plural(count, 'item')} {'does' if count == 1 else 'do'} not fit {len(data)} bytes")
        offsets = np.frombuffer(data, "<u4", count + 1, 4).astype(np.int64)
        start = head + len(description)
        if data[head:start] != description:
            raise ValueError(f"the description of its columns is {data[head:start][:200]!r}; expected {description!r}")
        sizes = np.diff(offsets)
        if offsets[0] != start or offsets[-1] != len(data) or (sizes < 0).any():
            raise ValueError(f"items are from {offsets[0]} to {offsets[-1]}; expected {start} to {len(data)}, in order")
        return cls(sizes.tolist(), [data[start:]])


def iter_chunks(
    reader: SplitReader, pack_mds_head: Callable[[int, int], bytes], *, overhead: int, limit: int
) -> Iterator[Chunk]:
    """Yield a split's documents in chunks; each is good until the next is asked for.

    Args:
        reader: the split.
        pack_mds_head: from a document's tokens and the bytes of a token to the bytes before its ids.
        overhead: bytes of a file without its items; each item adds 4 for its offset.
        limit: most bytes of a file with more than one document.
    """
    chunk, total, token_bytes = Chunk(), overhead, reader.dtype.itemsize
    for tokens, lengths in reader.iter_documents():
        view, position = tokens.data.cast("B"), 0
        for length in lengths.tolist():
            head, stop = pack_mds_head(length, token_bytes), position + length * token_bytes
            size = len(head) + stop - position
            if chunk.sizes and total + size + 4 > limit:
                yield chunk
                chunk.parts.clear()  # else it lives on, by its reader's name for it, while the next is filled
                chunk, total = Chunk(), overhead
            chunk.sizes.append(size)
            if head:
                chunk.parts.append(head)
            chunk.parts.append(view[position:stop])
            total += size + 4
            position = stop
    if chunk.sizes:
        yield chunk


def find_long_document(reader: SplitReader, name: str) -> list[str]:
    """Refuse a document that a chunk does not hold, since its offsets have 32 bits."""
    longest = longest_layout_document(reader)
    if longest * reader.dtype.itemsize + _HEADROOM < 1 << 32:
        return []
    return [f"{name}'s offsets hold 4 GiB a document; the longest of {reader.split} has {plural(longest, 'token')}"]
