"""Some whole documents as arrays, and what measures share: each table is made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

NEWLINE = 0x0A
BLOCK_BYTES = 8
"""Bytes that are read as one number."""

TableT = TypeVar("TableT")


class Batch:
    """Documents as bytes: `data`, `(bytes,)` of UTF-8, and the `offsets` of the documents in it, from 0 to `bytes`."""

    def __init__(self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]):
        self.data, self.offsets = data, offsets
        self.num_bytes = np.diff(offsets)
        """Bytes of each document, `(documents,)`."""
        self.is_ascii = bool(data.max() < 0x80)
        self._tables: dict[type[Any], Any] = {}

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def table(self, kind: Callable[[Batch], TableT]) -> TableT:
        """Return a table of these documents, made when it is first asked for, such as `batch.table(Words)`."""
        key = cast("type[Any]", kind)
        if key not in self._tables:
            self._tables[key] = kind(self)
        return self._tables[key]

    def drop_tables(self) -> None:
        """Free the tables now: they refer to the batch and it to them, so that they would wait for the collector."""
        self._tables.clear()

    def count(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Return how many bytes of each document a mask of the bytes marks, `(documents,)`."""
        return count_parts(mask, self.offsets)

    def count_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many of some sorted byte positions lie in each document, `(documents,)`."""
        return np.diff(np.searchsorted(positions, self.offsets))

    def matches(self, positions: npt.NDArray[np.int64], pattern: bytes) -> npt.NDArray[np.bool_]:
        """Return at which positions a pattern begins, `(positions,)`; a position may lie outside the data."""
        places = np.flatnonzero((positions >= 0) & (positions <= len(self.data) - len(pattern)))
        for index, byte in enumerate(pattern):
            places = places[self.data[positions[places] + index] == byte]
        found = np.zeros(len(positions), bool)
        found[places] = True
        return found

    def chars_between(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the characters (Unicode code points) of stretches of bytes that ascend and do not overlap.

        No stretch begins or ends inside a character.
        """
        if self.is_ascii:
            return stops - starts
        if len(self.leads) < len(starts):
            stretch = np.searchsorted(starts, self.leads, "right") - 1
            inside = (stretch >= 0) & (self.leads < stops[stretch])
            chars = stops - starts
            np.subtract.at(chars, stretch[inside], _CONTINUATIONS[self.data[self.leads[inside]]])
            return chars
        ranks = self._continuation_ranks
        return stops - starts - (ranks.before(stops) - ranks.before(starts))

    def end_with(self, chars: CharSet, stops: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return how many bytes the character has that ends before each position, 0 for one that is not in a set."""
        lasts = self.data[stops - 1]
        sizes = chars.ascii[lasts]
        wide = np.flatnonzero(lasts >= 0x80)
        if len(wide):
            stops, tails = stops[wide], lasts[wide].astype(np.uint32)
            for size in (2, 3):  # a position before the data reads its end: no wide character begins there
                tails |= self.data[stops - size].astype(np.uint32) << np.uint32(8 * (size - 1))
                known = chars.wide[size]
                places = np.minimum(np.searchsorted(known, tails), len(known) - 1)
                sizes[wide[known[places] == tails]] = size
        return sizes

    def read_blocks(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return the eight bytes at each of some positions as one number, zeros behind the data, `(positions,)`."""
        words, shifts = positions >> 3, (positions.view(np.uint64) & np.uint64(7)) << np.uint64(3)
        # Two aligned reads are faster than one that is not. A shift by 64 gives 0.
        blocks = self._blocks.take(words) >> shifts
        words += 1
        np.subtract(np.uint64(64), shifts, out=shifts)
        blocks |= self._blocks.take(words) << shifts
        return blocks

    @cached_property
    def num_chars(self) -> npt.NDArray[np.int64]:
        """Characters (Unicode code points) of each document, `(documents,)`."""
        return self.chars_between(self.offsets[:-1], self.offsets[1:])

    @cached_property
    def newlines(self) -> npt.NDArray[np.int64]:
        """Positions of the line feeds."""
        return np.flatnonzero(self.data == NEWLINE)

    @cached_property
    def white(self) -> npt.NDArray[np.bool_]:
        """Which bytes are white space, `(bytes,)`: every byte of a character that `str.split` splits at."""
        data = self.data
        white = (data == 0x20) | (data - np.uint8(0x09) <= 4) | (data - np.uint8(0x1C) <= 3)
        if not self.is_ascii:
            groups = _WIDE_WHITE[data[self.leads], data[self.leads + 1]]
            two, three = self.leads[groups == _TWO_BYTES], self.leads[groups > _TWO_BYTES]
            three = three[_WIDE_WHITE_ENDS[groups[groups > _TWO_BYTES], data[three + 2]]]
            for positions in (two, two + 1, three, three + 1, three + 2):
                white[positions] = True
        return white

    @cached_property
    def ascii_letters(self) -> npt.NDArray[np.bool_]:
        """Which bytes are letters from A to Z or a to z."""
        return (self.data | np.uint8(0x20)) - np.uint8(0x61) < 26

    @cached_property
    def letters(self) -> npt.NDArray[np.bool_]:
        """Which bytes begin a letter: A to Z, a to z, and letters outside ASCII by `_is_letter_block`."""
        if self.is_ascii:
            return self.ascii_letters
        letters = self.ascii_letters.copy()
        letters[self.leads] = LETTER_BLOCKS[self.data[self.leads], self.data[self.leads + 1]]
        return letters

    @cached_property
    def digits(self) -> npt.NDArray[np.bool_]:
        """Which bytes are digits, 0 to 9."""
        return self.data - np.uint8(0x30) < 10

    @cached_property
    def leads(self) -> npt.NDArray[np.int64]:
        """Positions of the first bytes of characters outside ASCII; others follow each: the text is valid UTF-8."""
        return np.flatnonzero(self.data >= 0xC2)

    @cached_property
    def newline_ranks(self) -> Ranks:
        """How many line feeds are before a position."""
        return Ranks(self.data == NEWLINE)

    @cached_property
    def letter_ranks(self) -> Ranks:
        """How many of the bytes before a position begin a letter."""
        return Ranks(self.letters)

    @cached_property
    def _blocks(self) -> npt.NDArray[np.uint64]:
        """The data as numbers of eight bytes, and zeros to read behind it."""
        blocks = np.zeros(len(self.data) // BLOCK_BYTES + 2, "<u8")
        blocks.view(np.uint8)[: len(self.data)] = self.data
        return blocks

    @cached_property
    def _continuation_ranks(self) -> Ranks:
        return Ranks(self.data.view(np.int8) < -64)  # 0x80 to 0xBF


class Ranks:
    """How many of the bytes before a position a mask marks: a bit a byte, and a sum for each 64 of them."""

    def __init__(self, mask: npt.NDArray[np.bool_]):
        bits = np.zeros((len(mask) // 64 + 1) * 8, np.uint8)
        bits[: (len(mask) + 7) // 8] = np.packbits(mask, bitorder="little")
        self._blocks = bits.view("<u8")
        self._before = sum_before(np.bitwise_count(self._blocks))

    def before(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many bytes before each of some positions are marked, int64 `(positions,)`."""
        blocks = positions >> 6
        bits = self._blocks[blocks] & _LOW_BITS[positions & 63]
        return self._before[blocks] + np.bitwise_count(bits)


class CharSet:
    """Characters of at most three bytes, to be looked for at the ends of words and lines."""

    def __init__(self, chars: str):
        encoded = [char.encode() for char in chars]
        self.ascii = np.isin(np.arange(256), [char[0] for char in encoded if len(char) == 1]).astype(np.uint8)
        """1 for each byte that is one of them, `(256,)`."""
        self.wide = {
            size: np.array([0, *sorted(int.from_bytes(char) for char in encoded if len(char) == size)], np.uint32)
            for size in (2, 3)
        }
        """Number of bytes -> 0, and the characters as big-endian numbers, in order."""


_LOW_BITS = np.array([(1 << count) - 1 for count in range(64)], np.uint64)


def _is_letter_block(lead: int, second: int) -> bool:
    """Return whether characters that begin with two bytes count as letters: a rule for each 64 characters.

    Not letters: U+0080 to U+00BF, the punctuation and symbols from U+2000 to U+2BFF, U+2E00 to U+2E7F and U+3000 to
    U+303F, private use and what follows it (U+E000 to U+F8FF, U+FE00 to U+FE3F), emoji and other symbols (U+1F000 to
    U+1FFFF), and what lies above U+E0000.
    """
    if lead < 0xE0:
        return lead != 0xC2
    if lead == 0xE2:
        return second >= 0xB0 and second not in (0xB8, 0xB9)
    if lead == 0xE3:
        return second != 0x80
    if lead == 0xEF:
        return second >= 0xA4 and second != 0xB8
    return lead != 0xEE and lead < 0xF3 and (lead, second) != (0xF0, 0x9F)


LETTER_BLOCKS = np.array(
    [[lead >= 0xC2 and _is_letter_block(lead, second) for second in range(256)] for lead in range(256)]
)
"""`_is_letter_block` as a table, `(256, 256)`."""


_TWO_BYTES = 1


def _place_wide_white() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return white space outside ASCII as tables, by its first two bytes and by its third.

    Returns:
        `(256, 256)`: 0 for none, `_TWO_BYTES`, or a group for each beginning of longer ones; `(groups, 256)`.
    """
    beginnings, ends = np.zeros((256, 256), np.uint8), np.zeros((8, 256), bool)
    groups: dict[bytes, int] = {}
    for code in (0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000):
        char = chr(code).encode()
        group = groups.setdefault(char[:2], len(groups) + _TWO_BYTES + 1) if len(char) == 3 else _TWO_BYTES
        beginnings[char[0], char[1]] = group
        ends[group, char[-1]] = True
    return beginnings, ends


_WIDE_WHITE, _WIDE_WHITE_ENDS = _place_wide_white()
_CONTINUATIONS = np.array([(lead >= 0xC2) + (lead >= 0xE0) + (lead >= 0xF0) for lead in range(256)])
"""How many bytes follow the first one of a character."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a document."""

    about: str
    """What it is, with its unit, in one line."""
    take: Callable[[Batch], npt.NDArray[Any]]
    """The numbers of a batch, `(documents,)`, any dtype."""


def divide(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return part / whole, 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole != 0)


def sum_parts(values: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sum of the values from offsets[i] to offsets[i + 1], `(len(offsets) - 1,)`; a part may be empty."""
    return np.diff(sum_before(values)[offsets])


def max_parts(values: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the largest value from offsets[i] to offsets[i + 1], `(len(offsets) - 1,)`; 0 where a part is empty."""
    largest = np.zeros(len(offsets) - 1, np.int64)
    some = np.diff(offsets) > 0
    if some.any():
        largest[some] = np.maximum.reduceat(values, offsets[:-1][some])
    return largest


def sum_before(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the sum of all values before each one, and of all, int64 `(len(values) + 1,)`."""
    before = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, dtype=np.int64, out=before[1:])
    return before


def count_parts(mask: npt.NDArray[np.bool_], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many are marked from offsets[i] to offsets[i + 1], `(len(offsets) - 1,)`."""
    return np.diff(Ranks(mask).before(offsets))


def find_runs(
    mask: npt.NDArray[np.bool_], offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find the longest runs of marked bytes; none goes on from one document to the next.

    Returns:
        The first position of each run, and the one behind its last.
    """
    changes = np.empty(len(mask) + 1, bool)
    changes[0], changes[-1] = mask[0], mask[-1]
    np.not_equal(mask[1:], mask[:-1], out=changes[1:-1])
    positions = np.flatnonzero(changes)
    starts, stops = positions[::2], positions[1::2]
    edges = offsets[1:-1]
    edges = edges[mask[edges - 1] & mask[edges]]
    if not len(edges):
        return starts.copy(), stops.copy()
    # Runs that go on over an edge are cut in two.
    places = np.searchsorted(stops, edges) + np.arange(len(edges))
    return _insert(starts, places + 1, edges), _insert(stops, places, edges)


def _insert(
    values: npt.NDArray[np.int64], places: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the values and some others; these have some places in the result."""
    together = np.empty(len(values) + len(others), np.int64)
    own = np.ones(len(together), bool)
    own[places] = False
    together[own], together[places] = values, others
    return together
