"""Lines: what line feeds separate. Code counts all lines, prose those that are not blank."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.clean.measures.batch import NEWLINE, Batch, CharSet, Measure, Ranks, count_parts, divide
from pipeline.clean.measures.words import Words

if TYPE_CHECKING:
    import numpy.typing as npt

SHORT_CHARS = 30
"""Lines of fewer characters are short: Penedo et al. 2024, section 3.6."""
BULLETS = "-•"
ELLIPSES = ("...", "…")
PUNCTUATION = ".!?\"'…”’»。！？．｡।॥؟۔։።។။"
"""Marks at which a line may end: those of C4 and FineWeb, and others that end sentences outside ASCII."""


class AllLines:
    """All lines of a batch, in order, blank ones too; each document has one at least.

    A line feed at the end of a document opens no further line.
    """

    def __init__(self, batch: Batch):
        lasts = batch.offsets[1:]
        unfinished = lasts[batch.data[lasts - 1] != NEWLINE]
        # At one position, the end of a document comes before the line feed that begins the next one.
        ends = np.sort(np.concatenate([batch.newlines * 2 + 1, unfinished * 2]), kind="stable")  # merges the two
        starts = np.concatenate([[0], ((ends + 1) >> 1)[:-1]])
        self.num_bytes = (ends >> 1) - starts
        """Bytes of each line, without its line feed, `(lines,)`."""
        self.firsts = np.searchsorted(starts, batch.offsets[:-1])
        """The first line of each document, `(documents,)`."""
        self.count = np.diff(self.firsts, append=len(ends))
        """Lines of each document, `(documents,)`."""


class Lines:
    """The lines of a batch that are not blank, in order: those with a word."""

    def __init__(self, batch: Batch):
        self._batch = batch
        words = batch.table(Words)
        begins = np.zeros(len(words.starts) + 1, bool)
        begins[words.ranks.before(batch.newlines)] = True
        begins[words.offsets] = True
        self._begins = begins
        self.firsts = np.flatnonzero(begins[:-1])
        """The first word of each line, `(lines,)`."""
        self.lasts = np.append(self.firsts[1:], len(words.starts))[: len(self.firsts)]
        """The word behind each line's last, `(lines,)`."""
        self.starts, self.stops = words.starts[self.firsts], words.stops[self.lasts - 1]
        """Positions of the first byte of each line's first word and behind its last one, `(lines,)`."""
        self.offsets = np.searchsorted(self.firsts, words.offsets)
        """The lines of document i are those from offsets[i] to offsets[i + 1], `(documents + 1,)`."""
        self.count = np.diff(self.offsets)
        """Lines of each document, `(documents,)`."""

    @cached_property
    def ranks(self) -> Ranks:
        """How many lines begin before a word."""
        return Ranks(self._begins)

    @cached_property
    def punctuated(self) -> npt.NDArray[np.bool_]:
        """Which lines end with one of `PUNCTUATION`, `(lines,)`."""
        return self._batch.end_with(_PUNCTUATION, self.stops) > 0

    @cached_property
    def trailing_off(self) -> npt.NDArray[np.bool_]:
        """Which lines end with an ellipsis, `(lines,)`."""
        found = np.zeros(len(self.stops), bool)
        for ending in map(str.encode, ELLIPSES):
            places = np.flatnonzero(self._batch.data[self.stops - 1] == ending[-1])
            begins = self.stops[places] - len(ending)
            found[places] |= (begins >= self.starts[places]) & self._batch.matches(begins, ending)
        return found

    def share(self, marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """Return the share of each document's lines that a mask of the lines marks, `(documents,)`."""
        return divide(count_parts(marked, self.offsets), self.count)


_PUNCTUATION = CharSet(PUNCTUATION)


def _mean_bytes(batch: Batch) -> npt.NDArray[np.float64]:
    lines = batch.table(AllLines)
    return divide(np.add.reduceat(lines.num_bytes, lines.firsts), lines.count)


def _longest_bytes(batch: Batch) -> npt.NDArray[np.int64]:
    lines = batch.table(AllLines)
    return np.maximum.reduceat(lines.num_bytes, lines.firsts)


def _bullets(batch: Batch) -> npt.NDArray[Any]:
    lines = batch.table(Lines)
    marked = np.zeros(len(lines.starts), bool)
    for bullet in map(str.encode, BULLETS):
        places = np.flatnonzero(batch.data[lines.starts] == bullet[0])
        marked[places] |= batch.matches(lines.starts[places], bullet)
    return lines.share(marked)


def _trailing_off(batch: Batch) -> npt.NDArray[Any]:
    lines = batch.table(Lines)
    return lines.share(lines.trailing_off)


def _punctuated(batch: Batch) -> npt.NDArray[Any]:
    lines = batch.table(Lines)
    return lines.share(lines.punctuated)


def _short(batch: Batch) -> npt.NDArray[Any]:
    lines = batch.table(Lines)
    return lines.share(batch.chars_between(lines.starts, lines.stops) < SHORT_CHARS)


MEASURES = {
    "mean_line_bytes": Measure("mean length of all lines, in bytes without the line feeds", _mean_bytes),
    "longest_line_bytes": Measure("length of the longest line, in bytes without the line feed", _longest_bytes),
    "bullet_lines": Measure(f"share of the lines that begin with a bullet ({' or '.join(BULLETS)})", _bullets),
    "ellipsis_lines": Measure("share of the lines that end with an ellipsis (... or …)", _trailing_off),
    "punctuated_lines": Measure(f"share of the lines that end with one of {PUNCTUATION}", _punctuated),
    "short_lines": Measure(f"share of the lines with fewer than {SHORT_CHARS} characters", _short),
}
