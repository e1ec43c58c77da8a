"""Characters of UTF-8 text, read from its bytes: white space, letters, the last one; shares; hashes and hash tables.

White space is what Python's `str.split` takes for it. Documents are valid UTF-8: what follows a first byte is there.
Stretches of a document are known by their hashes, and a hash table finds the equal ones without a sort.
"""

import numpy as np

from pipeline.numba_compiler import compiled
from shards.format.arrays import Bools, Int32s, UInt8s, UInt64s

Bytes = UInt8s
"""The UTF-8 of a document, uint8 `(bytes,)`."""
Blocks = UInt64s
"""A document in numbers of eight bytes, followed by at least eight zeros."""
Keys = UInt64s
"""Hashes: equal things have equal ones, and two that differ have the same once in 2^64."""

NEWLINE = 0x0A
FIRST_WIDE = 0xC2
"""Bytes from this one begin a character outside ASCII; those from 0x80 that are smaller go on with one."""


def mark_bytes(chars: bytes) -> Bools:
    """Return which bytes are among some characters, `(256,)`."""
    return np.isin(np.arange(256), list(chars))


_UPPER = np.arange(0x41, 0x5B, dtype=np.uint8).tobytes()
ASCII_LETTERS = mark_bytes(_UPPER + _UPPER.lower())
DIGITS = mark_bytes(b"0123456789")
_WIDE_WHITE = np.zeros(1 << 16, np.uint8)
"""The bytes of white space outside ASCII, by code point; 0 for all other characters."""
for _code in range(0x80, len(_WIDE_WHITE)):
    if chr(_code).isspace():
        _WIDE_WHITE[_code] = len(chr(_code).encode())
BEGINS_WHITE = mark_bytes(bytes([0xC2, 0xE1, 0xE2, 0xE3]))
"""The first bytes of white space outside ASCII, and of many other characters."""


@compiled
def find_runs(marks: Bytes) -> Int32s:
    """Return where the longest runs of marked characters begin and end, alternately: of bytes marked 1, not 0.

    No branch depends on a mark: it would be predicted wrong once a word, 20 cycles.
    """
    edges = np.empty(len(marks) + 2, np.int32)
    count, before = 0, np.uint8(0)
    for at in range(len(marks)):
        edges[count] = at
        count += marks[at] ^ before
        before = marks[at]
    edges[count] = len(marks)
    return edges[: (count + 1) // 2 * 2]


@compiled
def wide_white(document: Bytes, at: int) -> int:
    """Return how many bytes the white space has that begins at a byte of `BEGINS_WHITE`, 0 if none does."""
    code = (int(document[at]) & 0x1F) << 6 | int(document[at + 1]) & 0x3F
    if document[at] >= 0xE0:
        code = (code << 6 | int(document[at + 2]) & 0x3F) & 0xFFFF
    return int(_WIDE_WHITE[code])


@compiled
def is_letter(document: Bytes, at: int) -> bool:
    """Return whether a letter begins at a byte: A to Z, a to z, and outside ASCII by a rule for each 64 characters.

    Not letters: U+0080 to U+00BF, the punctuation and symbols from U+2000 to U+2BFF, U+2E00 to U+2E7F and U+3000 to
    U+303F, private use and what follows it (U+E000 to U+F8FF, U+FE00 to U+FE3F), emoji and other symbols (U+1F000 to
    U+1FFFF), and what is above U+E0000.
    """
    lead = document[at]
    if lead < FIRST_WIDE:
        return bool(ASCII_LETTERS[lead])
    if lead < 0xE0:
        return lead != 0xC2
    second = document[at + 1]
    if lead == 0xE2:
        return second >= 0xB0 and second != 0xB8 and second != 0xB9
    if lead == 0xE3:
        return second != 0x80
    if lead == 0xEF:
        return second >= 0xA4 and second != 0xB8
    return lead != 0xEE and lead < 0xF3 and (lead != 0xF0 or second != 0x9F)


@compiled
def read_last(document: Bytes, stop: int) -> tuple[int, int]:
    """Return the code point of the character that ends before a position, and how many bytes it has."""
    last = int(document[stop - 1])
    if last < 0x80:
        return last, 1
    code, size = last & 0x3F, 1
    while document[stop - size] < FIRST_WIDE:
        size += 1
        code |= (int(document[stop - size]) & 0x3F) << (6 * (size - 1))
    # Of the first byte, the bits behind its mark: five of two bytes, four of three, three of four.
    return code & ((1 << (5 * size + 1)) - 1), size


@compiled
def count_byte(document: Bytes, byte: int) -> int:
    """Return how often a byte occurs in the characters of a document."""
    count = 0
    for at in range(len(document)):
        count += document[at] == byte
    return count


@compiled
def begins_with(document: Bytes, at: int, stop: int, phrase: Bytes) -> bool:
    """Return whether the characters from a position on, up to another, begin with a phrase; A to Z in any case."""
    if at + len(phrase) > stop:
        return False
    for index in range(len(phrase)):
        byte = document[at + index]
        if byte != phrase[index] and (not ASCII_LETTERS[byte] or byte | 0x20 != phrase[index]):
            return False
    return True


@compiled
def divide(part: float, whole: float) -> float:
    """Return the share of a part, such as characters, in a whole; 0 if the whole is 0."""
    return part / whole if whole else 0.0


_MIX = np.uint64(0xD6E8FEB86659FD93)  # of the "rrmxmx" family of 64-bit mixers: odd, with well-spread bits
_ODD = np.uint64(0x9E3779B97F4A7C15)
_EACH_BYTE = np.uint64(0x0101010101010101)


@compiled
def finalize(value: np.uint64) -> np.uint64:
    """Finish a hash of characters: spread every bit of a value over all bits of the result; one to one."""
    value ^= value >> np.uint64(32)
    value *= _MIX
    value ^= value >> np.uint64(29)
    value *= _MIX
    return value ^ (value >> np.uint64(32))


@compiled
def chain(key: np.uint64, following: np.uint64) -> np.uint64:
    """Return the hash of a sequence of characters and of what follows it, from those of both; of none it is 0."""
    return finalize(key * _ODD + following)


@compiled
def read_blocks(document: Bytes) -> Blocks:
    """Return a document's characters in numbers of eight bytes, as its stretches are hashed."""
    blocks = np.zeros(len(document) // 8 + 2, np.uint64)
    copy = blocks.view(np.uint8)
    for at in range(len(document)):  # numba takes seconds to compile the assignment of a slice
        copy[at] = document[at]
    return blocks


@compiled
def read_stretch(blocks: Blocks, start: int, stop: int) -> tuple[np.uint64, int]:
    """Hash the characters between two positions, one at least; return the key, and how many they are."""
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
    """Return the eight bytes of characters at a position, as they are hashed."""
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
    """Return an empty hash table for so many stretches of characters: at most half full, a power of 2 in size."""
    slots = 2
    while slots < 2 * count:
        slots *= 2
    return np.full(slots, -1, np.int32)


@compiled
def find_first(table: Int32s, keys: Keys, index: int) -> int:
    """Return the index of the first stretch of characters with a key, by the hash table; a new key is put in it."""
    last = len(table) - 1
    slot = int(np.int64(keys[index] & np.uint64(last)))
    while table[slot] >= 0:
        if keys[table[slot]] == keys[index]:
            return int(table[slot])
        slot = (slot + 1) & last
    table[slot] = index
    return index
