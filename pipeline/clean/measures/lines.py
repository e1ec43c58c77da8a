"""Lines: what line feeds separate. A line feed at the end of a document opens no further line."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean.measures.batch import NEWLINE, Batch, Measure, divide

if TYPE_CHECKING:
    import numpy.typing as npt


class Lines:
    """The lines of a batch, in order, blank ones too; each document has one at least."""

    def __init__(self, batch: Batch):
        lasts = batch.offsets[1:]
        unfinished = lasts[batch.data[lasts - 1] != NEWLINE]
        # At one position, the end of a document comes before the line feed that begins the next one.
        ends = np.sort(np.concatenate([batch.newlines * 2 + 1, unfinished * 2]))
        self.stops = ends >> 1
        """Position behind each line's last byte, the line feed not counted, `(lines,)`."""
        self.starts = np.concatenate([[0], ((ends + 1) >> 1)[:-1]])
        """Position of each line's first byte, `(lines,)`."""
        self.offsets = np.searchsorted(self.starts, batch.offsets)
        self.offsets[-1] = len(ends)
        """The lines of document i are those from offsets[i] to offsets[i + 1], `(documents + 1,)`."""

    @cached_property
    def count(self) -> npt.NDArray[np.int64]:
        """Lines of each document, `(documents,)`."""
        return np.diff(self.offsets)

    @cached_property
    def num_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of each line, without its line feed, `(lines,)`."""
        return self.stops - self.starts


def _mean_bytes(batch: Batch) -> npt.NDArray[np.float64]:
    lines = batch.table(Lines)
    return divide(np.add.reduceat(lines.num_bytes, lines.offsets[:-1]), lines.count)


def _longest_bytes(batch: Batch) -> npt.NDArray[np.int64]:
    lines = batch.table(Lines)
    return np.maximum.reduceat(lines.num_bytes, lines.offsets[:-1])


MEASURES = {
    "mean_line_bytes": Measure("mean length of the lines, in bytes without line feeds", _mean_bytes),
    "longest_line_bytes": Measure("length of the longest line, in bytes", _longest_bytes),
}
