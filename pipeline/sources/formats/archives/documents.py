"""Documents that come one by one, as members and records of archives do: their batches, and counts of what is not read.

Whatever is not a document is counted with its reason. What should be one and cannot is malformed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_texts
from pipeline.sources.base import ALLOW, BATCH_BYTES, MALFORMED, SHOWN_MALFORMED, Columns, SourceError, Span, TextBatch
from pipeline.sources.formats.columns import make_batch

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

TEXT = "text"
"""The column of the texts."""


class MemberError(SourceError):
    """Why a member cannot be a document, to be counted or refused. The rest of the archive can be read."""


class Documents:
    """The next batch of a span, and what was not read since the batch before."""

    def __init__(self, source: SourceRecipe, span: Span, carried: Columns, columns: Sequence[str] = ()):
        """Begin the first batch.

        Args:
            source: the source.
            span: the span.
            carried: the columns to carry.
            columns: the names of the values that each document comes with.
        """
        self.source, self.span, self.carried = source, span, carried
        self._columns = columns
        self._begin()

    def _begin(self) -> None:
        self.not_read: Counter[str] = Counter()
        self._malformed: list[str] = []
        self._rows: list[int] = []
        self._texts: list[bytes] = []
        self._values: list[tuple[Any, ...]] = []
        self._size = 0

    def add(self, row: int, text: bytes, *values: Any) -> None:
        """Add a document: its row in the span, its text in UTF-8, and a value for each column."""
        self._rows.append(row)
        self._texts.append(text)
        self._values.append(values)
        self._size += len(text)

    def refuse(self, where: str, fault: object, remedy: str = "Leave it out by `members`") -> None:
        """Count a malformed document, and keep some to show.

        Raises:
            SourceError: the source's `max_malformed` is 0.
        """
        if not self.source.max_malformed:
            raise SourceError(f"{where}: {fault}. {remedy}{ALLOW}.")
        self.not_read[MALFORMED] += 1
        if len(self._malformed) < SHOWN_MALFORMED:
            self._malformed.append(f"{where}: {fault}")

    @property
    def is_full(self) -> bool:
        """Whether the batch has `BATCH_BYTES` of text."""
        return self._size >= BATCH_BYTES

    def take(self, read_bytes: int) -> TextBatch:
        """Return the batch, and begin the next one.

        Args:
            read_bytes: how many stored bytes of the span have been read.
        """
        text = wrap_texts(pa.large_binary(), self._texts)
        batch = TextBatch(text, np.array(self._rows, np.uint32))
        if self.source.keep or self.carried:  # else the columns are of no use
            columns: dict[str, Any] = {TEXT: text}
            for place, name in enumerate(self._columns):
                columns[name] = pa.array([values[place] for values in self._values], pa.string())
            batch = make_batch(self.source, self.span, pa.table(columns), batch.rows, self.carried, TEXT)
        return self.finish(batch, read_bytes)

    def finish(self, batch: TextBatch, read_bytes: int) -> TextBatch:
        """Return a batch with the counts of what was not read, and begin the next one."""
        batch.rejected.update(self.not_read)
        batch.malformed, batch.read_bytes = self._malformed, read_bytes
        self._begin()
        return batch
