"""Hashes of stretches of a document, and a hash table that finds the equal ones without a sort."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.numba_compiler import compiled

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Int32s, UInt64s
    from pipeline.clean.measures.characters import Bytes

    Blocks = UInt64s
    """A document in numbers of eight bytes, followed by at least eight zeros."""
    Keys = UInt64s
    """Hashes: equal things have equal ones, and two that differ have the same once in 2^64."""

_MIX = np.uint64(0xD6E8FEB86659FD93)  # of the "rrmxmx" family of 64-bit mixers: odd, with well-spread bits
_ODD = np.uint64(0x9E3779B97F4A7C15)
_EACH_BYTE = np.uint64(0x0101010101010101)


@compiled
def finalize(value: np.uint64) -> np.uint64:
    """Finish a hash: spread every bit of a value over all bits of the result; one to one."""
    value ^= value >> np.uint64(32)
    value *= _MIX
    value ^= value >> np.uint64(29)
    value *= _MIX
    return value ^ (value >> np.uint64(32))


@compiled
def chain(key: np.uint64, following: np.uint64) -> np.uint64:
    """Return the hash of a sequence and of what follows it, from those of both; a sequence of none has hash 0."""
    return finalize(key * _ODD + following)


@compiled
def read_blocks(document: Bytes) -> Blocks:
    """Return a document in numbers of eight bytes, as its stretches are hashed."""
    blocks = np.zeros(len(document) // 8 + 2, np.uint64)
    copy = blocks.view(np.uint8)
    for at in range(len(document)):  # numba takes seconds to compile the assignment of a slice
        copy[at] = document[at]
    return blocks


@compiled
def read_stretch(blocks: Blocks, start: int, stop: int) -> tuple[np.uint64, int]:
    """Hash the bytes between two positions, one at least; return the key, and how many characters they are."""
    size = stop - start
    key = np.uint64(size)
    chars = size
    while size > 8:
        block = read_block(blocks, start)
        key = chain(key, block)
        chars -= _count_continuations(block)
        start += 8
        size -= 8
    block = read_block(blocks, start) << np.uint64(8 * (8 - size))  # without what follows the stretch
    return chain(key, block), chars - _count_continuations(block)


@compiled
def read_block(blocks: Blocks, at: int) -> np.uint64:
    """Return the eight bytes at a position, as they are hashed."""
    shift = np.uint64(8 * (at & 7))
    # A shift by 64 has no effect; shifts by 1 and by 63 give 0.
    return blocks[at >> 3] >> shift | blocks[(at >> 3) + 1] << np.uint64(1) << (np.uint64(63) - shift)


@compiled
def _count_continuations(block: np.uint64) -> int:
    """Return how many of eight bytes go on with a character: those from 0x80 to 0xBF."""
    marks = block >> np.uint64(7) & ~(block >> np.uint64(6)) & _EACH_BYTE
    return int(np.int64(marks * _EACH_BYTE >> np.uint64(56)))


@compiled
def make_table(count: int) -> Int32s:
    """Return an empty hash table for some keys, at most half full with them; its size is a power of 2."""
    slots = 2
    while slots < 2 * count:
        slots *= 2
    return np.full(slots, -1, np.int32)


@compiled
def find_first(table: Int32s, keys: Keys, index: int) -> int:
    """Return the index of the first key equal to one, by the hash table; a key without an earlier one is put in it."""
    last = len(table) - 1
    slot = int(np.int64(keys[index] & np.uint64(last)))
    while table[slot] >= 0:
        if keys[table[slot]] == keys[index]:
            return int(table[slot])
        slot = (slot + 1) & last
    table[slot] = index
    return index
