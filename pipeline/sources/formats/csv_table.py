"""CSV and TSV with a header: cut where records end, read by Arrow, every value as the text that the file has.

Quotes are those of RFC 4180 as Arrow reads them: a quote counts at the start of a field, and a doubled one inside is
one quote. With `quote = ""` it is a character like others; without the key, a file in which it may be one is refused.
To cut a large file, all of it is scanned once. Memory: one block of records.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import csv
import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from pipeline.arrow_arrays import wrap_mask
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import SourceError, Span, TextBatch
from pipeline.sources.formats.byte_io import MOST_BYTES, cut_records, excerpt, open_file
from pipeline.sources.formats.columns import list_names, refuse_twins
from pipeline.sources.formats.detect import ending_of
from pipeline.sources.formats.encodings import UTF8
from pipeline.sources.formats.span_reader import Malformed, SpanReader, parse_parts
from shards.errors import plural
from shards.format.arrays import Int64s
from shards.terminal.display import printable

_DELIMITERS = {".tsv": "\t", ".tab": "\t", ".psv": "|"}
_SELDOM_IN_TEXT = "\t|"
_EXCERPT = 60
_CHARACTERS = 'If quotes are characters of the text, set the source\'s quote = "".'
OLD_MAC = (
    "a bare carriage return is in its header, or ends its lines, as on old Macs; expected line feeds. Convert it: "
    "tr '\\r' '\\n' < OLD > NEW."
)
csv.field_size_limit(MOST_BYTES)  # the header of a file without one is its first record


class Form(NamedTuple):
    """How the fields of CSV are written."""

    delimiter: str
    quote: str | None = None
    """The source's key."""

    def read(self, lines: io.StringIO) -> Iterator[list[str]]:
        """Yield the records of lines as Python's `csv` reads them."""
        quoting = csv.QUOTE_NONE if self.quote == "" else csv.QUOTE_MINIMAL
        return csv.reader(lines, delimiter=self.delimiter, quoting=quoting)


class _Header(NamedTuple):
    names: list[str]
    form: Form
    length: int
    """Bytes of text up to the first record."""


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Check the header of a CSV file, and cut it where records end; a compressed one is one span."""
    header = _read_header(source, whole)
    if not header.names:
        return []
    reader, find_end = SpanReader(source, whole), QuotedFields(header.form).find_end

    def read(raw: BinaryIO) -> Iterator[bytes]:
        return (piece for piece, _ in reader.read_cut(raw, find_end, stored=True))

    return cut_records(whole, unit_bytes, source.encoding, read)


def _read_header(source: SourceRecipe, span: Span) -> _Header:
    """Read a CSV file's header, without names if no record follows.

    Raises:
        SourceError: the header lacks a column of the recipe.
    """
    form = Form(source.delimiter or _DELIMITERS.get(ending_of(span.name), ","), source.quote)
    names, length = list[str](), 0
    with open_file(span) as raw:
        reader = SpanReader(source, replace(span, start=0))
        for piece, _ in reader.read_cut(raw, QuotedFields(form).find_end):
            start = 0
            if not names:
                text = piece.decode(UTF8, "surrogateescape")
                lines = io.StringIO(text, newline="\n")
                try:  # empty lines may stand before the header
                    names = next(filter(None, form.read(lines)), [])
                except csv.Error as error:
                    raise SourceError(f"{span.name}: {OLD_MAC}") from error
                if names:
                    _check_columns(source, names, form.delimiter, span.name)
                start = len(text[: lines.tell()].encode(UTF8, "surrogateescape"))
                length += start
            if piece[start:].strip(b"\r\n"):
                return _Header(names, form, length)
    return _Header([], form, length)


def _check_columns(source: SourceRecipe, names: list[str], delimiter: str, name: str) -> None:
    refuse_twins(names, source, name)
    if isinstance(source.messages, str):
        raise SourceError(
            f"{name}: a field of csv is a text, and no list of messages. Name two columns, as in messages = "
            '["prompt", "completion"], or convert the file to JSON lines or parquet.'
        )
    for column, key in source.columns.items():
        if column in names:
            continue
        raise SourceError(
            f"{name}: no column {column!r} in its header, read with the delimiter {delimiter!r}; there are "
            f"{list_names(names)}. Correct `{key}`, `delimiter` or `quote`; or, if the file has no header, put a "
            "line with the columns' names first."
        )


def _find_quoted(data: bytes, delimiter: str, quote: str | None) -> Iterator[tuple[int, int]]:
    """Yield where fields of CSV in quotes begin and end in bytes that start with a record.

    The end of one that the data does not close is beyond it.
    """
    before = b"\r\n" + delimiter.encode()
    place = 0 if quote != "" else len(data)
    while (first := data.find(b'"', place)) >= 0:  # much faster than a pattern
        place = first + 1
        if first and data[first - 1] not in before:
            continue  # within a field without quotes, where it is a character like others
        # A doubled quote is one of the text; a single one ends the field.
        while (last := data.find(b'"', place)) >= 0 and data[last + 1 : last + 2] == b'"':
            place = last + 2
        place = last + 1 if last >= 0 else len(data) + 1
        yield first, place


class QuotedFields:
    """The fields of CSV in quotes, of bytes that start with a record."""

    def __init__(self, form: Form, data: bytes = b""):
        """Find them in some bytes; of others, `find_end` does it."""
        self._form = form
        self.places = [*_find_quoted(data, *form)]

    def find_end(self, data: bytes) -> int:
        """Find them in these bytes, and return where the last whole record ends; 0 if none does."""
        self.places, stop = [*_find_quoted(data, *self._form)], len(data)
        for first, after in reversed(self.places):
            if end := data.rfind(b"\n", after, stop) + 1:
                return end
            stop = first
        return data.rfind(b"\n", 0, stop) + 1

    def judge(self, data: bytes, skip: int = 0) -> tuple[Int64s, Int64s, str]:
        """Return where fields begin that go on after the quote, or that hold line ends; and why quotes may be text.

        Two quotes of the text make one record of all between them. It shows by text after the second one, by quotes
        within other fields, which would be in quotes then, and by what separates the swallowed fields if that is
        seldom in text.

        Args:
            data: some of the bytes.
            skip: where they begin.
        """
        places = np.fromiter(chain.from_iterable(self.places), np.int64, 2 * len(self.places)).reshape(-1, 2) - skip
        places = places[(places[:, 0] >= 0) & (places[:, 0] < len(data))]
        text, (first, after), delimiter = np.frombuffer(data, np.uint8), places.T, self._form.delimiter
        follow = text[np.minimum(after, len(data) - 1)]
        wrong = first[(after < len(data)) & ~np.isin(follow, [*b"\r\n", ord(delimiter)])]

        def count(character: str) -> Int64s:
            held = np.flatnonzero(text == ord(character))
            return np.searchsorted(held, after) - np.searchsorted(held, first)

        joined, why = count("\n") > 0, ""
        if len(wrong):
            why = "text follows the quote that ends a field"
        elif joined.any() and data.count(b'"') > count('"').sum():
            why = "a field in quotes goes over lines, and others have quotes within them"
        elif delimiter in _SELDOM_IN_TEXT and (joined & (count(delimiter) > 0)).any():
            why = f"a field in quotes goes over lines and holds the delimiter {delimiter!r}"
        return wrong, first[joined], why


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Stream the records of a CSV span; empty lines are not records.

    Raises:
        SourceError: a record is malformed and the source's `max_malformed` is 0.
    """
    span = reader.span
    header = _read_header(reader.source, span)
    quote, quoted = header.form.quote, QuotedFields(header.form)
    skip = header.length if span.start == 0 else 0
    with reader.open() as raw:
        for piece, whole in reader.read_cut(raw, quoted.find_end):
            data, begin, skip = piece[skip:], skip, max(0, skip - len(piece))
            if not data.strip(b"\r\n"):
                continue
            if not whole:  # what was left of bytes that came before
                quoted, begin = QuotedFields(header.form, data), 0
                if quoted.places and quoted.places[-1][1] > len(data):
                    shown = excerpt(data[quoted.places[-1][0] :])
                    raise SourceError(
                        f"{span.name}: a quote is never closed, in record {reader.row} or after it: {shown}. "
                        f"{_CHARACTERS} If the file is cut short, restore it."
                    )
            wrong, joined, why = quoted.judge(data, begin)
            if why and quote is None:
                shown = excerpt(data[[*wrong, *joined][0] :])
                change = 'write "" for \\" in the file' if b'\\"' in data else "set quote = '\"'"
                raise SourceError(
                    f"{span.name}: {why}, in record {reader.row} or after it: {shown}. {_CHARACTERS} If they enclose "
                    f"fields, {change}."
                )
            batch = _read_block(reader, header, data)
            batch.odd_quotes = len(wrong if quote else joined)
            yield batch


def _read_block(reader: SpanReader, header: _Header, data: bytes) -> TextBatch:
    """Return a CSV block's records that are well-formed and that the predicates keep."""
    # Two kinds of fault: a record with too few or too many fields, and a value of another type.
    table, faults = _parse(reader, header, data)
    num_rows = table.num_rows + len(faults)
    records = np.delete(np.arange(num_rows), list(faults))
    compared: dict[str, Any] = {}
    for predicate in reader.predicates:
        name, kind = predicate.column, cast("Any", predicate.json_type())
        parts, done = [pa.nulls(0, kind)], 0
        for part in parse_parts(table.column(name).combine_chunks(), partial(_cast, kind=kind)):
            if isinstance(part, Malformed):
                shown = excerpt(part.record.as_py())
                faults[int(records[done])] = f"column {name!r} holds '{shown}', which is not {kind}"
                part = pa.nulls(1, kind)
            parts.append(part)
            done += len(part)
        compared[name] = pa.concat_arrays(parts)
    rows = reader.number_whole_rows(num_rows, faults, "Repair the record")
    # Records with a bad value leave the batch; those with bad fields were never in the table.
    whole = wrap_mask(~np.isin(records, list(faults)))
    table = table.filter(whole)
    compared = {name: column.filter(whole) for name, column in compared.items()}
    return reader.make_batch(table, rows, compared=pa.table(compared))


def _parse(reader: SpanReader, header: _Header, data: bytes) -> tuple[pa.Table, dict[int, str]]:
    """Parse a CSV block; return the columns as bytes, and the faults of records with too few or too many fields."""
    if len(data) > MOST_BYTES:
        raise SourceError(f"{reader.span.name}: record {reader.row} is longer than 2 GiB. Split it.")
    faults: dict[int, str] = {}

    def refuse(record: Any) -> Any:
        found = f"{plural(record.actual_columns, 'field')}, expected {record.expected_columns}"
        faults[record.number - 1] = f"{found}: {printable(record.text[:_EXCERPT])}"
        return "skip"

    # Columns are asked for by place: two that nobody wants may have one name.
    names = [str(place) for place in range(len(header.names))]
    wanted = [str(header.names.index(column)) for column in reader.columns]
    # Of a refused record that is not UTF-8, pyarrow prints a traceback before it raises its error.
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        table = pa_csv.read_csv(
            cast("Any", pa.BufferReader(data)),
            read_options=pa_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
            parse_options=pa_csv.ParseOptions(
                delimiter=header.form.delimiter,
                quote_char=header.form.quote != "" and '"',
                newlines_in_values=True,
                invalid_row_handler=refuse,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types={name: pa.large_binary() for name in wanted}, include_columns=wanted, null_values=[]
            ),
        )
    finally:
        sys.unraisablehook = hook
    return table.rename_columns(reader.columns).combine_chunks(), faults


def _cast(column: Any, kind: Any) -> Any:
    """Convert bytes of CSV to a type; an empty number is null."""
    import pyarrow.compute as pc  # late: the build's own process needs it seldom, and it takes 0.06 s

    text = column.cast(pa.large_string())
    if kind == pa.large_string():
        return text
    text = pc.ascii_trim_whitespace(text)
    return pc.if_else(pc.equal(text, pa.scalar("", pa.large_string())), None, text).cast(kind)
