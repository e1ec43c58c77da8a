"""Content hashes: the XXH3-128 of a document's UTF-8 bytes, as 16 bytes or as two uint64 halves.

The bytes are the digest in canonical, big-endian order. Block lists write them in hex, and document tables store them
as they are. Sorting, searching and comparing use the halves, `(first 8 bytes, last 8 bytes)` as big-endian numbers;
they sort in the same order as the bytes.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import xxhash

from shards.format.arrays import Int64s, UInt8s, UInt64s

hash_document = xxhash.xxh3_128_digest
"""Return the content hash of a document's UTF-8 bytes: 16 bytes."""


def hash_documents(data: memoryview, offsets: Int64s) -> UInt64s:
    """Return the content hashes of the documents of a text column.

    Args:
        data: the column's UTF-8 bytes.
        offsets: where each document begins in `data`, and where the last one ends, `(num_documents + 1,)`.

    Returns:
        Their hashes' halves, uint64 `(num_documents, 2)`.
    """
    digest = hash_document
    return split_hashes(b"".join([digest(data[start:stop]) for start, stop in itertools.pairwise(offsets.tolist())]))


def split_hashes(hashes: bytes | bytearray | UInt8s) -> UInt64s:
    """Return the halves of concatenated content hashes: uint64 `(num_hashes, 2)`."""
    return np.frombuffer(hashes, ">u8").astype(np.uint64).reshape(-1, 2)


def split_column(column: Any) -> UInt64s:
    """Return the halves of content hashes in a `binary(16)` Arrow column without nulls: uint64 `(num_rows, 2)`."""
    return split_hashes(read_column(column))


def read_column(column: Any) -> UInt8s:
    """Return the content hashes in such a column as bytes, uint8 `(num_rows, 16)`; no copy is made."""
    # A slice of a column shares its buffer: begin where the slice begins.
    return np.frombuffer(column.buffers()[1], np.uint8)[16 * column.offset :][: 16 * len(column)].reshape(-1, 16)


def join_hashes(hi: UInt64s, lo: UInt64s) -> UInt8s:
    """Return content hashes as bytes, uint8 `(num_hashes, 16)`, from their halves."""
    return np.stack([hi, lo], axis=1).astype(">u8").view(np.uint8)
