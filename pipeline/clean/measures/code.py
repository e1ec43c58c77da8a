"""What tells program text from data: letters outside literals, letters and digits, encoded runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean.measures.batch import Batch, Measure, divide, find_runs, max_parts, sum_parts
from pipeline.clean.measures.hashes import find_first, hash_stretches
from pipeline.clean.measures.lines import Lines
from pipeline.clean.measures.literals import find_literals
from pipeline.clean.measures.words import Words
from shards.audit.ngrams import finalize

if TYPE_CHECKING:
    import numpy.typing as npt

ENCODED_RUN_BYTES = 64
"""A run of the letters of base64 or hex counts from this length: Lozhkov et al. 2024 (StarCoder2 and The Stack v2)."""


NAME_BYTES = 6
"""Shorter names, such as self, are on most lines of good code."""
NAME_LINES = 20
"""Documents of fewer lines can have one name on most of them by chance."""

_ODD = np.uint64(0x9E3779B97F4A7C15)


class Names:
    """The longest runs of letters from A to Z, digits and underscores of a batch, in order: names and numbers."""

    def __init__(self, batch: Batch):
        self.starts, self.stops = find_runs(
            batch.ascii_letters | batch.digits | (batch.data == ord("_")), batch.offsets
        )
        """Positions of each name's first byte and behind its last, `(names,)`."""
        self.numbers = batch.digits[self.starts]
        """Which of them begin with a digit, `(names,)`."""


class EncodedRuns:
    """Runs of at least `ENCODED_RUN_BYTES` letters, digits, +, / and =, and line feeds between them."""

    def __init__(self, batch: Batch):
        mask = batch.ascii_letters | batch.digits | (batch.data == ord("+")) | (batch.data == ord("/"))
        mask |= (batch.data == ord("=")) | (batch.data == ord("\n"))
        self.starts = self.num_bytes = np.zeros(0, np.int64)
        """First position of each run, and its length, `(runs,)`."""
        # Eight bytes at a time: a run has `_FULL_BLOCKS` full eights at least, so that most text needs no closer look.
        packed = np.packbits(mask)
        full = packed == 0xFF
        some = full
        for _ in range(_FULL_BLOCKS - 1):
            some = some[1:] & some[:-1]
        if some.any():
            starts, stops = _find_full(packed, full)
            if (np.searchsorted(batch.offsets, starts, "right") < np.searchsorted(batch.offsets, stops)).any():
                starts, stops = find_runs(mask, batch.offsets)  # one goes on over the end of a document
            long = stops - starts >= ENCODED_RUN_BYTES
            self.starts, self.num_bytes = starts[long], (stops - starts)[long]
        self.offsets = np.searchsorted(self.starts, batch.offsets)
        """The runs of document i are those from offsets[i] to offsets[i + 1], `(documents + 1,)`."""


def _find_full(
    packed: npt.NDArray[np.uint8], full: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find the runs of bits, first bits first, that fill at least `_FULL_BLOCKS` bytes; from where to where."""
    firsts, lasts = find_runs(full, np.array([0, len(full)]))
    enough = lasts - firsts >= _FULL_BLOCKS
    firsts, lasts = firsts[enough], lasts[enough]
    around = np.concatenate([packed, np.zeros(1, np.uint8)])  # behind the last, and before the first
    return firsts * 8 - _LAST_ONES[around[firsts - 1]], lasts * 8 + _FIRST_ONES[around[lasts]]


_FULL_BLOCKS = ENCODED_RUN_BYTES // 8 - 1
_FIRST_ONES = np.array([8 - (byte ^ 0xFF).bit_length() for byte in range(256)])
"""How many bits of a byte are 1 up to the first 0."""
_LAST_ONES = np.array([(~byte & (byte + 1)).bit_length() - 1 for byte in range(256)])
"""How many bits of a byte are 1 from the last 0."""


def _alphanumeric(batch: Batch) -> npt.NDArray[np.float64]:
    return divide(batch.count(batch.letters | batch.digits), batch.num_chars)


def _longest_encoded(batch: Batch) -> npt.NDArray[np.int64]:
    runs = batch.table(EncodedRuns)
    return max_parts(runs.num_bytes, runs.offsets)


def _encoded(batch: Batch) -> npt.NDArray[np.float64]:
    runs = batch.table(EncodedRuns)
    return divide(sum_parts(runs.num_bytes, runs.offsets), batch.num_bytes)


def _code_letters(batch: Batch) -> npt.NDArray[np.float64]:
    """Take the letters in literals, and those in numbers outside literals, from all letters."""
    starts, stops = find_literals(batch)
    letters = np.diff(batch.letter_ranks.before(batch.offsets))
    letters -= _count_letters(batch, starts, stops)
    names = batch.table(Names)
    numbers = np.flatnonzero(names.numbers)
    firsts, lasts = names.starts[numbers], names.stops[numbers]
    # Few numbers have letters. A name is in a literal as a whole, or not at all.
    some = batch.letter_ranks.before(lasts) > batch.letter_ranks.before(firsts)
    firsts, lasts = firsts[some], lasts[some]
    outside = np.searchsorted(starts, firsts, "right") == np.searchsorted(stops, firsts, "right")
    letters -= _count_letters(batch, firsts[outside], lasts[outside])
    return divide(letters, batch.table(Words).document_chars)


def _count_letters(batch: Batch, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the letters of each document in some stretches that do not overlap, `(documents,)`."""
    letters = batch.letter_ranks.before(stops) - batch.letter_ranks.before(starts)
    count = np.zeros(len(batch), np.int64)
    np.add.at(count, np.searchsorted(batch.offsets, starts, "right") - 1, letters)
    return count


def _top_name_lines(batch: Batch) -> npt.NDArray[np.float64]:
    names, lines = batch.table(Names), batch.table(Lines)
    long = names.stops - names.starts >= NAME_BYTES
    long &= ~names.numbers
    long &= np.repeat(lines.count >= NAME_LINES, np.diff(np.searchsorted(names.starts, batch.offsets)))
    places = np.flatnonzero(long)
    starts, stops = names.starts[places], names.stops[places]
    offsets = np.searchsorted(starts, batch.offsets)
    hashes = hash_stretches(batch, starts, stops)
    # Each name once a line.
    feeds = batch.newline_ranks.before(starts).view(np.uint64)
    once = find_first(finalize(hashes + feeds * _ODD), offsets) == np.arange(len(starts))
    offsets = np.append(0, np.cumsum(once))[offsets]
    first = find_first(hashes[once], offsets)
    most = max_parts(np.bincount(first, minlength=len(first)), offsets)
    return divide(most, lines.count)


MEASURES = {
    "alphanumeric": Measure("share of the characters that are letters and digits", _alphanumeric),
    "code_letters": Measure(
        "share of the characters that are letters outside strings and numbers, white space not counted", _code_letters
    ),
    "top_name_lines": Measure(
        f"share of the lines with the name of {NAME_BYTES} letters or more that is on most lines, 0 for fewer than "
        f"{NAME_LINES} lines",
        _top_name_lines,
    ),
    "longest_encoded_run": Measure(
        f"longest run of base64 or hex, line feeds included, from {ENCODED_RUN_BYTES} bytes", _longest_encoded
    ),
    "encoded": Measure(f"share of the bytes in runs of base64 or hex from {ENCODED_RUN_BYTES} bytes", _encoded),
}
