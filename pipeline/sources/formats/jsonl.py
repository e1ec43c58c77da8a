"""JSON lines: check the first records, then parse the columns that the recipe names with Arrow, piece by piece."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import accumulate
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.json as pa_json

from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import SourceError, Span, TextBatch
from pipeline.sources.formats.byte_io import MOST_BYTES, cut_at, excerpt, open_file
from pipeline.sources.formats.columns import describe_list, list_names
from pipeline.sources.formats.detect import parse_object
from pipeline.sources.formats.span_reader import Malformed, SpanReader, parse_parts
from pipeline.sources.messages import MESSAGES, PLAIN_MESSAGES, describe_turns

_HEAD_BYTES = 1 << 16
"""The records that begin in so many bytes are checked for the recipe's columns."""
_NO_SPACE = re.compile(r"\S")
_NULL = re.compile(rb"\n[ \t\r]*null")  # `\s` would try each of many empty lines from each other one
_REMEDY = "Repair the record, or correct the column's name or type"


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Check the first records of a file of JSON lines, and cut it after line ends; a compressed one is one span."""
    with open_file(whole) as raw:
        head = next(filter(bytes.strip, SpanReader(source, whole).read_pieces(raw, b"\n")), b"")
    if not head:
        return []
    check_head(source, whole, head)
    return cut_at("\n", whole, unit_bytes, source.encoding)


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Stream the JSON lines of a span as records; empty lines are not records.

    Raises:
        SourceError: a record is malformed and the source's `max_malformed` is 0.
    """
    with reader.open() as raw:
        yield from read_records(reader, reader.read_pieces(raw, b"\n"))


def read_records(reader: SpanReader, pieces: Iterable[bytes]) -> Iterator[TextBatch]:
    """Stream the records of a span that comes in pieces of JSON lines.

    Raises:
        SourceError: a record is malformed and the source's `max_malformed` is 0.
    """
    options, messages = parse_options(reader.source, reader.span.name), reader.source.messages
    plain = parse_options(reader.source, reader.span.name, PLAIN_MESSAGES) if isinstance(messages, str) else None
    for piece in filter(bytes.strip, pieces):
        table, faults = parse_lines(piece, options, reader.span, reader.row, plain)
        rows = reader.number_whole_rows(table.num_rows + len(faults), faults, _REMEDY)
        listed = None
        if isinstance(messages, str) and plain and table.schema != plain.explicit_schema:
            listed = _list_values(reader.span, piece, faults, messages)
        yield reader.make_batch(table, rows, listed=listed)


def check_head(source: SourceRecipe, span: Span, piece: bytes) -> None:
    """Check that the first records of JSON lines have the columns that the recipe names, with the expected types.

    Args:
        source: the source.
        span: the file.
        piece: its first records, whole.

    Raises:
        SourceError: they lack a column or cannot be parsed.
    """
    piece = piece.lstrip()
    head = piece[: piece.find(b"\n", _HEAD_BYTES) + 1 or len(piece)]
    options = parse_options(source, span.name)
    records = [record for line in head.split(b"\n") if (record := parse_object(line)) is not None]
    if piece.startswith(b"[") and len(records) < 2:  # an array with an object a line: the last has no comma
        raise SourceError(
            f"{span.name}: holds one array, not an object on each line; end its name with .json, or set format='json'."
        )
    for column, key in source.columns.items():
        if column == source.messages:
            first = next((value for record in records for value in _values_at(record, column) if value), None)
            if isinstance(first, list) and isinstance(first[0], str):
                raise SourceError(f"{span.name}: {describe_turns(column)}")
            continue
        for path in accumulate(column.split("."), "{}.{}".format):
            if any(isinstance(value, list) for record in records[:1] for value in _values_at(record, path)):
                raise SourceError(f"{span.name}: {describe_list(column, path, key)}")
    # If no record has a text, Arrow says what they are.
    kind = list if isinstance(source.messages, str) else str
    texts = (text for record in records for column in source.text_columns for text in _values_at(record, column))
    if not any(isinstance(text, kind) for text in texts):
        table, faults = parse_lines(head, options, span, 0)
        SpanReader(source, span).number_whole_rows(table.num_rows + len(faults), faults, _REMEDY)
        if not table.num_rows:
            raise SourceError(f"{span.name}: all of its first records are malformed: {faults[0]}")
    if not records:  # Arrow reads more than lines
        raise SourceError(
            f"{span.name}: none of its first lines is a JSON object. Write one a line, ended by a line feed, as "
            "`jq -c .` does."
        )
    found = dict.fromkeys(name for record in records for name in _names(record))
    for column, key in source.columns.items():
        if column not in found:
            raise SourceError(
                f"{span.name}: no column {column!r} in its first records; there are {list_names(found)}. Correct "
                f"`{key}`."
            )
        if "." in column and any(column in record for record in records):
            raise SourceError(
                f"{span.name}: {column!r} is one key with a dot in its name; in JSON lines a dot leads into an object. "
                "Rename the key, or convert the file to parquet."
            )


def _names(record: Any, prefix: str = "") -> Iterator[str]:
    for key, value in record.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{key}.")


def _values_at(record: Any, column: str) -> Iterator[Any]:
    """Yield the value at the dotted path of a column in a JSON record, if it has one."""
    value: Any = record
    for part in column.split("."):
        if not isinstance(value, dict) or part not in value:
            return
        value = cast("Any", value)[part]
    yield value


def _list_values(span: Span, piece: bytes, faults: Mapping[int, str], column: str) -> list[Any]:
    """Return the values of a column in a piece's well-formed records."""
    decoder = json.JSONDecoder(parse_int=Decimal)
    text = piece.decode("utf-8-sig", "replace")
    values: list[Any] = []
    records = at = 0
    while rest := _NO_SPACE.search(text, at):
        at = rest.start()
        if records in faults:
            at = text.find("\n", at) + 1 or len(text)
        else:
            try:
                record, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:  # of a record that Arrow can read
                fault = f"{span.name}: {column!r} cannot be read ({error}). Convert the file to parquet."
                raise SourceError(fault) from error
            values.append(next(_values_at(record, column), None))
        records += 1
    return values


_Columns: TypeAlias = "dict[str, pa.DataType | _Columns]"
"""Columns by name: a type, or the columns in a struct."""


def parse_options(source: SourceRecipe, name: str, messages: pa.DataType = MESSAGES) -> pa_json.ParseOptions:
    """Return options that read only the recipe's columns of JSON lines, with the expected types."""
    # Dotted names become nested structs. A name that is a value and a struct at once is refused.
    tree: _Columns = {}
    kind = messages if isinstance(source.messages, str) else pa.large_string()
    columns: list[tuple[str, pa.DataType]] = [(column, kind) for column in source.text_columns]
    columns += [(predicate.column, predicate.json_type()) for predicate in source.predicates]
    for column, kind in columns:
        *parents, leaf = column.split(".")
        place: pa.DataType | _Columns = tree
        for part in parents:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                break
        if not isinstance(place, dict) or place.get(leaf, kind) != kind:
            raise SourceError(f"{name}: {column!r} has two types, or is part of another column. Correct the recipe.")
        place[leaf] = kind
    return pa_json.ParseOptions(explicit_schema=pa.schema(_fields(tree)), unexpected_field_behavior="ignore")


def _fields(tree: _Columns) -> list[pa.Field[Any]]:
    return [pa.field(name, pa.struct(_fields(kind)) if isinstance(kind, dict) else kind) for name, kind in tree.items()]


def parse_lines(
    piece: bytes, options: pa_json.ParseOptions, span: Span, row: int, first: pa_json.ParseOptions | None = None
) -> tuple[pa.Table, dict[int, str]]:
    """Parse a piece of JSON lines; return the well-formed records, and the faults of the others by number in the piece.

    If `first` is given and can read all of the piece, it does.

    Raises:
        SourceError: the piece is one record that is too long for Arrow; `row` is its number in the span.
    """
    if len(piece) > MOST_BYTES:
        raise SourceError(f"{span.name}: record {row} is longer than 2 GiB. Split it, or convert the file to parquet.")
    for tried in filter(None, (first, options)):
        with contextlib.suppress(pa.ArrowInvalid):
            return _read_json(piece, tried), {}
    lines = [line for line in piece.split(b"\n") if line.strip()]
    # Arrow refuses the whole piece for one bad record.
    tables: list[pa.Table] = [options.explicit_schema.empty_table()]
    faults: dict[int, str] = {}
    records = 0
    for part in parse_parts(lines, lambda part: _read_json(b"\n".join(part), options)):
        if isinstance(part, Malformed):
            faults[records] = f"{str(part.error).removesuffix(' in row 0')}: {excerpt(part.record)}"
            records += 1
        else:
            tables.append(part)
            records += part.num_rows
    return pa.concat_tables(tables), faults


def _read_json(piece: bytes, options: pa_json.ParseOptions) -> pa.Table:
    if piece.lstrip().startswith(b"null") or _NULL.search(piece):
        # No object. Arrow takes it for one without columns, or, as the first record, dies of a segmentation fault.
        raise pa.ArrowInvalid("JSON parse error: expected an object in row 0")
    read_options = pa_json.ReadOptions(use_threads=False, block_size=len(piece) + 1)
    reader = cast("Any", pa.BufferReader(piece))
    return pa_json.read_json(reader, read_options=read_options, parse_options=options)
