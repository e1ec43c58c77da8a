"""The layout that MDS shards and LitData chunks share: a count, offsets of items, the items, in files up to 64 MiB.

An item is a document. Files are cut between documents, when the next would pass the limit; a longer document has a
file to itself. One file is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from shards.convert.layouts.layout import OpenFile, longest_layout_document
from shards.convert.split_reader import SplitReader
from shards.errors import plural

MAX_CHUNK_BYTES = 1 << 26
"""Both libraries' usual size: 64 MiB, small enough to download one while another is read."""

_HEADROOM = 1 << 12
"""Bytes kept free below 4 GiB for the head of a file with one document."""


def write_chunks(
    open_file: OpenFile,
    reader: SplitReader,
    name: str,
    *,
    description: bytes = b"",
    pack_item_head: Callable[[int, int], bytes] | None = None,
) -> Iterator[tuple[str, int, list[int]]]:
    """Write a split's documents in files of at most `MAX_CHUNK_BYTES`, or with a single document.

    Args:
        open_file: as for `Layout.write_split`.
        reader: the split.
        name: a file's name, with `{}` for its number.
        description: what a file has between the offsets and its items.
        pack_item_head: from a document's tokens and the bytes of a token to the bytes before its ids.

    Yields:
        Of each file when it is written its name, its bytes, and the bytes of each item.
    """
    for index, (sizes, parts) in enumerate(_iter_chunks(reader, 8 + len(description), pack_item_head)):
        # The number of items; where each begins, counted from the file's start, and the end of the last.
        starts = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=starts[1:])
        starts += 4 + 4 * len(starts) + len(description)
        head = np.uint32(len(sizes)).astype("<u4").tobytes() + starts.astype("<u4").tobytes() + description
        path = f"{reader.split}/{name.format(index)}"
        with open_file(path) as file:
            file.write(head)
            file.writelines(parts)
        parts.clear()  # else it lives on, by this name, while the next is filled
        yield name.format(index), int(starts[-1]), sizes


def _iter_chunks(
    reader: SplitReader, overhead: int, pack_item_head: Callable[[int, int], bytes] | None
) -> Iterator[tuple[list[int], list[bytes | memoryview]]]:
    """Yield the items of each file: their sizes in bytes, and their content in parts.

    `overhead` is a file's bytes without items; each item adds 4 for its offset.
    """
    sizes, parts, total = list[int](), list[bytes | memoryview](), overhead
    token_bytes = reader.dtype.itemsize
    for tokens, lengths in reader.iter_documents():
        view, position = tokens.data.cast("B"), 0
        for length in lengths.tolist():
            head = pack_item_head(length, token_bytes) if pack_item_head is not None else b""
            stop = position + length * token_bytes
            size = len(head) + stop - position
            if sizes and total + size + 4 > MAX_CHUNK_BYTES:
                yield sizes, parts
                sizes, parts, total = [], [], overhead
            sizes.append(size)
            parts += [head, view[position:stop]]
            total += size + 4
            position = stop
    if sizes:
        yield sizes, parts


def find_long_document(reader: SplitReader, name: str) -> list[str]:
    """Refuse a document that a chunk does not hold, since its offsets have 32 bits."""
    longest = longest_layout_document(reader)
    if longest * reader.dtype.itemsize + _HEADROOM < 1 << 32:
        return []
    return [f"{name}'s offsets hold 4 GiB a document; the longest of {reader.split} has {plural(longest, 'token')}"]
