"""Content hashes: the XXH3-128 of a document's UTF-8 bytes, as 16 bytes or as two uint64 halves; equal ones found.

The bytes are the digest in canonical, big-endian order. Block lists write them in hex, and document tables store them
as they are. Sorting, searching and comparing use the halves, `(first 8 bytes, last 8 bytes)` as big-endian numbers;
they sort in the same order as the bytes.

Equal hashes are in the same range of all hashes, so a caller with more hashes than memory compares one range after
another, in any place and order. The mix, validation, block lists and `plan` work so.
"""

# pyright: reportUnknownMemberType=false
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from shards.format.arrays import Bools, Int64s, UInt8s, UInt64s

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


@dataclass(frozen=True)
class HashRange:
    """One of `2 ** bits` equal ranges of all hashes, by the leading bits."""

    number: int
    bits: int

    @property
    def start(self) -> int:
        """The first half of the lowest of a range of hashes; `2 ** 64` for the range after the last."""
        return self.number << (64 - self.bits)

    def meets(self, lowest: int, highest: int) -> bool:
        """Return whether hashes from one first half to another may be in the range."""
        return lowest >> (64 - self.bits) <= self.number <= highest >> (64 - self.bits)

    def holds(self, hi: UInt64s) -> Bools:
        """Return which hashes are in the range, by their first halves."""
        return hi >> np.uint64(64 - self.bits) == self.number


def count_range_bits(hashes: int, most: int) -> int:
    """Return the leading bits by which to divide hashes into ranges of at most `most`, about."""
    return (max(0, hashes - 1) // most).bit_length()


def divide_hashes(hashes: int, most: int) -> list[HashRange]:
    """Return the fewest equal ranges with at most `most` hashes each, about."""
    bits = count_range_bits(hashes, most)
    return [HashRange(number, bits) for number in range(1 << bits)]


def sort_hashes(hi: UInt64s, lo: UInt64s, *, bits: int = 0) -> tuple[Int64s, Int64s]:
    """Sort hashes; equal ones keep their order.

    A key holds the beginning of a hash, and its place in the last bits: sorting numbers takes a fifth of the time of
    `lexsort`. The few hashes that share a beginning are ordered by the whole hash.

    Args:
        hi: the first halves.
        lo: the second halves.
        bits: how many leading bits are equal in all of them.

    Returns:
        The places of the hashes in order, `(hashes,)`; and where in it those are that share their beginning, among
        them all equal ones.
    """
    place_bits = np.uint64(max(0, len(hi) - 1).bit_length())
    keys = (hi << np.uint64(bits)) >> place_bits << place_bits
    keys |= np.arange(len(keys), dtype=np.uint64)
    keys.sort()
    beginnings = keys >> place_bits
    same = beginnings[1:] == beginnings[:-1]
    del beginnings  # before the next array of this size is made
    keys &= (np.uint64(1) << place_bits) - np.uint64(1)
    order = keys.view(np.int64)
    shared = np.flatnonzero(np.append(same, False) | np.append(False, same))
    places = order[shared]
    order[shared] = places[np.lexsort((lo[places], hi[places]))]
    return order, shared


def mark_first(hi: UInt64s, lo: UInt64s) -> Bools:
    """Return which of hashes in order are the first of their kind, `(hashes,)`."""
    first = np.ones(len(hi), bool)
    first[1:] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
    return first


def find_copies(hi: UInt64s, lo: UInt64s, order: Int64s) -> tuple[Int64s, Int64s]:
    """Find the hashes that equal an earlier one.

    Args:
        hi: the first halves.
        lo: the second halves.
        order: the places of the hashes to compare, in order, of equal ones the original first.

    Returns:
        The places of the copies, and the place of each one's original.
    """
    first = mark_first(hi[order], lo[order])
    originals = order[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
    return order[~first], originals[~first]


def find_hashes(hi: UInt64s, lo: UInt64s, listed_hi: UInt64s, listed_lo: UInt64s) -> Int64s:
    """Return where hashes are in a list of distinct ones in hash order, -1 for the others, `(hashes,)`."""
    found = np.full(len(hi), -1, np.int64)
    places = np.searchsorted(listed_hi, hi)
    left = np.arange(len(hi))
    # One step for each listed hash that shares its first half with the one before: next to none.
    while len(left := left[places[left] < len(listed_hi)]):
        left = left[listed_hi[places[left]] == hi[left]]
        hit = left[listed_lo[places[left]] == lo[left]]
        found[hit] = places[hit]
        places[left] += 1
    return found
