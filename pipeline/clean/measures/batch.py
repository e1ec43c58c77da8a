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

WHITE = np.array(
    [
        *(0xC285, 0xC2A0, 0xE19A80, *range(0xE28080, 0xE2808B)),
        *(0xE280A8, 0xE280A9, 0xE280AF, 0xE2819F, 0xE38080),
    ],
    np.uint32,
)
"""The UTF-8 of the white space outside ASCII."""

TableT = TypeVar("TableT")


class Batch:
    """Documents as bytes: `data`, `(bytes,)` of UTF-8, and the `offsets` of the documents in it, from 0 to `bytes`."""

    def __init__(self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]):
        self.data, self.offsets = data, offsets
        self.num_bytes = np.diff(offsets)
        self._tables: dict[type[Any], Any] = {}

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def table(self, kind: Callable[[Batch], TableT]) -> TableT:
        """Return a table of these documents, made when it is first asked for, such as `batch.table(Words)`."""
        key = cast("type[Any]", kind)
        if key not in self._tables:
            self._tables[key] = kind(self)
        return self._tables[key]

    def count(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many of some sorted byte positions lie in each document, `(documents,)`."""
        return np.diff(np.searchsorted(positions, self.offsets))

    @cached_property
    def newlines(self) -> npt.NDArray[np.int64]:
        """Positions of the line feeds."""
        return np.flatnonzero(self.data == NEWLINE)

    @cached_property
    def continuations(self) -> npt.NDArray[np.int64]:
        """Positions of the bytes that continue a character of UTF-8."""
        return np.flatnonzero((self.data & 0xC0) == 0x80)

    @cached_property
    def white(self) -> npt.NDArray[np.bool_]:
        """Which bytes are of white space, `(bytes,)`: all bytes of characters for which `str.isspace` holds."""
        data = self.data
        white = (data == 0x20) | (data - np.uint8(0x09) <= 4) | (data - np.uint8(0x1C) <= 3)
        # C2 85, C2 A0; E1 9A 80, E2 80 80 to 8A, E2 80 A8, A9, AF, E2 81 9F, E3 80 80
        (lead,) = np.nonzero((data >= 0xC2) & (data <= 0xE3))
        for size in (2, 3):
            at = lead[data[lead] == 0xC2] if size == 2 else lead[data[lead] >= 0xE1]
            value = np.zeros(len(at), np.uint32)
            for byte in range(size):
                value = value << 8 | data[at + byte]
            at = at[np.isin(value, WHITE)]
            for byte in range(size):
                white[at + byte] = True
        return white

    @cached_property
    def word_continuations(self) -> npt.NDArray[np.int64]:
        """Positions of the bytes that continue a character that is not white space."""
        return self.continuations[~self.white[self.continuations]]

    @cached_property
    def letters(self) -> npt.NDArray[np.bool_]:
        """Which bytes begin a letter: A to Z, a to z, and every character outside ASCII that is not white space."""
        ascii_letters = (self.data | 0x20) - np.uint8(0x61) < 26
        return ascii_letters | ((self.data >= 0xC2) & ~self.white)

    @cached_property
    def digits(self) -> npt.NDArray[np.bool_]:
        """Which bytes are digits, 0 to 9."""
        return self.data - np.uint8(0x30) < 10

    @cached_property
    def num_chars(self) -> npt.NDArray[np.int64]:
        """Characters (Unicode code points) of each document."""
        return self.num_bytes - self.count(self.continuations)


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
