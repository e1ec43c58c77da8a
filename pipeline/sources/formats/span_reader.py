"""A span as its format reads it: batches of its rows, and counts of what is not read.

Whatever is not a document is counted with its reason. What should be one and cannot is malformed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_mask
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import (
    ALLOW,
    MALFORMED,
    SHOWN_MALFORMED,
    SourceError,
    Span,
    TextBatch,
    describe_place,
)
from pipeline.sources.formats.byte_io import last_end, open_file, read_blocks, read_text_blocks
from pipeline.sources.formats.columns import take_path, test_predicates, without_path_columns
from pipeline.sources.messages import mark_messages


class SpanReader:
    """A span that is being read, and what was not read of it since its last batch."""

    def __init__(self, source: SourceRecipe, span: Span):
        """Begin to read a span, of which nothing has been read."""
        self.source, self.span = without_path_columns(source, span.url), span
        self.predicates = self.source.predicates
        self.columns = list(self.source.columns)
        self.not_read: Counter[str] = Counter()
        self.row = 0
        """The number of the next row, in the formats that count their rows by `number_rows`."""
        self.part = ""
        """The part of the file that is being read, in the formats that have parts, such as `row group 3`."""
        self.raw: Any = None
        """The file, if its format reads it through from one end to the other: batches say how far."""
        self._malformed: list[str] = []

    @property
    def place(self) -> str:
        """Where the reading is, to follow the file's name in a message; empty before the first rows."""
        found = self.part or (f"record {self.row} or one soon after" if self.row else "")
        return f": {found}" if found else ""

    @contextlib.contextmanager
    def open(self) -> Generator[BinaryIO]:
        """Open the file: batches then say how far it has been read."""
        with open_file(self.span) as raw:
            self.raw = raw
            yield raw

    def read_pieces(self, raw: BinaryIO, separator: bytes) -> Iterator[bytes]:
        """Yield the span's bytes as pieces of UTF-8 that end with a separator (the last one may not)."""
        return (piece for piece, _ in self.read_cut(raw, partial(last_end, separator=separator)))

    def read_cut(
        self, raw: BinaryIO, find_end: Callable[[bytes], int], *, stored: bool = False
    ) -> Iterator[tuple[bytes, bool]]:
        """Yield the span's bytes in pieces that end where `find_end` says.

        Args:
            raw: the file.
            find_end: returns where the last whole record of some bytes ends, which start with a record; 0 if none does.
            stored: whether the bytes are yielded as they are stored; else as text in UTF-8.

        Yields:
            Each piece, and whether `find_end` has ended it: what is left at the end of the span comes last.

        Raises:
            SourceError: a record is longer than `max_document_bytes`.
        """
        data, done, most = b"", 0, self.source.max_document_bytes
        fresh: list[bytes] = []
        blocks = read_blocks(raw, self.span) if stored else read_text_blocks(raw, self.span, self.source.encoding)
        for block in itertools.chain(blocks, [b""]):
            fresh.append(block)
            size = sum(map(len, fresh))
            if block and size < len(data) and len(data) + size <= most:
                continue  # a long record: searched again when it has doubled, not after every block
            # Pieces end where the format says; what is left waits for the next block.
            data, fresh = b"".join([data, *fresh]), []
            if cut := find_end(data):
                yield data[:cut], True
                data, done = data[cut:], done + cut
            if len(data) > most:
                place = replace(self.span, start=self.span.start + (0 if self.row else done), kind="b")
                raise too_long(place, self.row, most)
        if data:
            yield data, False

    def number_rows(self, count: int) -> np.ndarray:
        """Return the numbers of the next rows, uint32 `(count,)`."""
        self.row += count
        return np.arange(self.row - count, self.row, dtype=np.uint32)

    def number_whole_rows(self, count: int, faults: dict[int, str], remedy: str) -> np.ndarray:
        """Return the numbers of the next rows, but for the malformed ones, which `refuse` counts.

        Args:
            count: of these rows.
            faults: by the place among them.
            remedy: of all faults.
        """
        for place, fault in sorted(faults.items()):
            self.refuse(self.row + place, fault, remedy)
        # Malformed records keep their numbers: rows of the others are those that provenance names.
        return np.delete(self.number_rows(count), list(faults))

    def refuse(self, row: int, fault: str, remedy: str) -> None:
        """Count a malformed record, and keep some to show.

        Raises:
            SourceError: the source's `max_malformed` is 0.
        """
        where = describe_place(self.span, row)
        if not self.source.max_malformed:
            raise SourceError(f"{where}: {fault}. {remedy}{ALLOW}.")
        self.not_read[MALFORMED] += 1
        if len(self._malformed) < SHOWN_MALFORMED:
            self._malformed.append(f"{where}: {fault}")

    def make_batch(
        self,
        table: pa.Table | pa.RecordBatch,
        rows: np.ndarray,
        *,
        compared: pa.Table | None = None,
        listed: list[Any] | None = None,
    ) -> TextBatch:
        """Return a batch from a table's columns, with the rows that all predicates of the source keep.

        Args:
            table: rows of the span.
            rows: the rows' numbers in the span, `(num_rows,)`.
            compared: the predicates' columns of the same rows, if the table has other values there.
            listed: see `mark_messages`.
        """
        columns = [take_path(table, column) for column in self.source.text_columns]
        rejected: Counter[str] = Counter()
        if self.predicates:
            tested = table if compared is None else compared
            mask, rejected = test_predicates(tested, self.predicates, self.span.name)
            columns, rows = [column.filter(wrap_mask(mask)) for column in columns], rows[mask]
            listed = listed and [*itertools.compress(listed, mask)]
        is_text = not self.source.has_conversations
        batch = TextBatch(columns[0], rows) if is_text else mark_messages(columns, rows, listed)
        batch.rejected.update(rejected)
        return self.finish(batch)

    def finish(self, batch: TextBatch) -> TextBatch:
        """Return a batch with the counts of what was not read before its end."""
        batch.rejected.update(self.not_read)
        batch.malformed = self._malformed
        self.not_read, self._malformed = Counter(), []
        if self.raw is not None and self.span.kind == "b":
            # A stream of decompressed bytes closes the file when it ends.
            batch.read_bytes = (self.span.stop if self.raw.closed else self.raw.tell()) - self.span.start
        return batch


class Malformed(NamedTuple):
    """A record that Arrow cannot parse."""

    record: Any
    error: pa.ArrowInvalid


def parse_parts(records: Any, parse: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield, in order, what `parse` makes of records by Arrow, and each `Malformed` one, found by halving."""
    if not len(records):
        return
    try:
        yield parse(records)
    except pa.ArrowInvalid as error:
        if len(records) == 1:
            yield Malformed(records[0], error)
            return
        middle = len(records) // 2
        yield from parse_parts(records[:middle], parse)
        yield from parse_parts(records[middle:], parse)


def too_long(span: Span, row: int, most: int) -> SourceError:
    """Return the error of a document that is longer than a source's `max_document_bytes`."""
    remedy = "Split it, or leave the file out; a source's `max_document_bytes` is the limit"
    return SourceError(f"{describe_place(span, row)}: is longer than {most:,} bytes. {remedy}.")
