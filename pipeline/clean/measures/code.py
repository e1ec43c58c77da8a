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
        # Eight bytes at a time: a run has seven full eights at least, so that most text needs no closer look.
        full = np.packbits(mask) == 0xFF
        for _ in range(ENCODED_RUN_BYTES // 8 - 2):
            full = full[1:] & full[:-1]
        if full.any():
            starts, stops = find_runs(mask, batch.offsets)
            long = stops - starts >= ENCODED_RUN_BYTES
            self.starts, self.num_bytes = starts[long], (stops - starts)[long]
        self.offsets = np.searchsorted(self.starts, batch.offsets)
        """The runs of document i are those from offsets[i] to offsets[i + 1], `(documents + 1,)`."""


def _alphanumeric(batch: Batch) -> npt.NDArray[np.float64]:
    return divide(batch.count(batch.letters | batch.digits), batch.num_chars)


def _longest_encoded(batch: Batch) -> npt.NDArray[np.int64]:
    runs = batch.table(EncodedRuns)
    return max_parts(runs.num_bytes, runs.offsets)


def _encoded(batch: Batch) -> npt.NDArray[np.float64]:
    runs = batch.table(EncodedRuns)
    return divide(sum_parts(runs.num_bytes, runs.offsets), batch.num_bytes)


def _code_letters(batch: Batch) -> npt.NDArray[np.float64]:
    """Mark the bytes of literals by adding 1 where one begins and taking 1 where it ends, summed up."""
    step = np.zeros(len(batch.data) + 1, np.int8)
    starts, stops = find_literals(batch)
    step[starts] += 1
    step[stops] -= 1
    names = batch.table(Names)
    step[names.starts[names.numbers]] += 1
    step[names.stops[names.numbers]] -= 1
    outside = np.cumsum(step[:-1], dtype=np.int8) == 0
    return divide(batch.count(batch.letters & outside), batch.table(Words).document_chars)


def _top_name_lines(batch: Batch) -> npt.NDArray[np.float64]:
    names, lines = batch.table(Names), batch.table(Lines)
    long = ~names.numbers & (names.stops - names.starts >= NAME_BYTES)
    starts, stops = names.starts[long], names.stops[long]
    offsets = np.searchsorted(starts, batch.offsets)
    hashes = hash_stretches(batch, starts, stops, np.diff(offsets))
    # Each name once a line; documents differ in the names' hashes already.
    feeds = np.bincount(np.searchsorted(starts, batch.newlines), minlength=len(starts) + 1)[:-1]
    feeds = np.cumsum(feeds).view(np.uint64)
    once = find_first(finalize(hashes + finalize(feeds))) == np.arange(len(starts))
    first = find_first(hashes[once])
    count = np.bincount(first, minlength=len(first))
    most = max_parts(count, np.searchsorted(starts[once], batch.offsets))
    return divide(most, lines.count) * (lines.count >= NAME_LINES)


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
