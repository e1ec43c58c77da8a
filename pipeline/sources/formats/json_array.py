"""One JSON array of objects: its elements are found by a scan and then read as JSON lines.

The scan knows strings and brackets alone; what an element holds is for the reader of JSON lines to parse. To cut a
large file, all of it is scanned once. Memory: one block of elements.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import SourceError, Span, TextBatch
from pipeline.sources.formats import jsonl
from pipeline.sources.formats.byte_io import cut_records, excerpt, open_file
from pipeline.sources.formats.span_reader import SpanReader

_MARK = re.compile(rb'["\[\]{},]')
_SPACE = b" \t\r\n"


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Check the first elements of a JSON array, and cut its file between elements; a compressed one is one span."""
    reader = SpanReader(source, whole)
    with open_file(whole) as raw:
        head = next(filter(bytes.strip, _read_lines(raw, reader)), b"")
    if not head:
        return []
    jsonl.check_head(source, whole, head)
    return cut_records(whole, unit_bytes, source.encoding, partial(_read_lines, reader=reader, stored=True))


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Stream the elements of a JSON array's span.

    Raises:
        SourceError: an element is malformed and the source's `max_malformed` is 0, or the array is cut short.
    """
    with reader.open() as raw:
        yield from jsonl.read_records(reader, _read_lines(raw, reader))


def _read_lines(raw: BinaryIO, reader: SpanReader, *, stored: bool = False) -> Iterator[bytes]:
    """Yield the elements of a JSON array's span as JSON lines, in pieces as long as those of the array.

    Raises:
        SourceError: the array has no end, or is none.
    """
    span = reader.span
    elements = _Elements(span)
    for piece, whole in reader.read_cut(raw, elements.find_end, stored=stored):
        if not whole and piece.strip(_SPACE):
            raise _cut_short(span)
        yield elements.take_lines(piece)
    if span.stop == span.file_bytes and not elements.ended:
        raise _cut_short(span)


def _cut_short(span: Span) -> SourceError:
    return SourceError(f"{span.name}: its array has no end, so the file was cut short. Restore the file.")


def _find_string_end(data: bytes, start: int) -> int:
    """Return where a string of a JSON array ends that begins before `start`; 0 if the data ends first."""
    end = start
    while (quote := data.find(b'"', end)) >= 0:
        end = quote + 1
        escape = quote
        while escape > start and data[escape - 1] == 0x5C:  # a backslash
            escape -= 1
        if (quote - escape) % 2 == 0:
            return end
    return 0


class _Elements:
    """Finds the elements of an array in blocks of a span."""

    def __init__(self, span: Span):
        self._name, self._begun = span.name, span.start > 0
        self._marks: list[int] = []  # commas and the last bracket, in the data last searched
        self._start = 0  # of the first element there
        self.ended = False
        """Whether the end of the array has been found."""

    def find_end(self, data: bytes) -> int:
        """Return where the last whole element and its comma end, or the data if the array ends there.

        Raises:
            SourceError: the data is not one array.
        """
        # The data begins with an element, after the comma before it; only the first has the bracket in front.
        self._start, self._marks = 0, []
        if self.ended:
            return self._refuse_rest(data, 0)
        if not self._begun:
            self._start = len(data) - len(data.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)) + 1
            if self._start > len(data):
                return 0
            if data[self._start - 1 : self._start] != b"[":
                raise SourceError(
                    f"{self._name}: starts with {excerpt(data[self._start - 1 :])}; expected an array of objects. "
                    "Write only the array (`jq '.KEY'` extracts it), or JSON lines."
                )
        # Strings are skipped whole, so that brackets and commas in them do not count.
        depth = 1
        place = self._start
        while match := _MARK.search(data, place):
            place, mark = match.end(), match[0]
            if mark == b'"':
                place = _find_string_end(data, place)
                if not place:
                    break
            elif mark == b",":
                if depth == 1:
                    self._marks.append(match.start())
            elif mark in (b"[", b"{"):
                depth += 1
            else:
                depth -= 1
                if not depth:
                    self._marks.append(match.start())
                    self.ended = True
                    return self._refuse_rest(data, place)
        return self._marks[-1] + 1 if self._marks else 0

    def _refuse_rest(self, data: bytes, start: int) -> int:
        if rest := data[start:].strip(_SPACE):
            raise SourceError(f"{self._name}: goes on after the end of its array: {excerpt(rest)}. Repair the file.")
        return len(data)

    def take_lines(self, piece: bytes) -> bytes:
        """Return the piece that `find_end` has ended with each element on a line of its own."""
        # A tab is white space between values, as a line end is, and refused in strings, as a line end is.
        lines = bytearray(piece.replace(b"\n", b"\t").replace(b"\r", b"\t"))
        lines[: self._start] = b" " * min(self._start, len(lines))
        for place in self._marks:
            lines[place] = 0x0A
        self._begun = True
        return bytes(lines)
