"""JSON lines: checked at their head, parsed by Arrow piece by piece, the columns that the recipe names alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.json as pa_json

from pipeline.recipe.predicates import parse_keep
from pipeline.sources.base import SourceError, Span, TextBatch
from pipeline.sources.formats.byte_io import open_file, read_pieces
from pipeline.sources.formats.columns import make_batch

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

_HEAD_BYTES = 1 << 16
"""Records at the file's head that are looked at for the columns that the recipe names."""
_MOST_BYTES = (1 << 31) - 2
"""Arrow's JSON reader counts the bytes of a block in 32 bits."""


def read_span(source: SourceRecipe, span: Span) -> Iterator[TextBatch]:
    """Stream a span's records; empty lines are none."""
    predicates = parse_keep(source.keep)
    options = _parse_options(source, span.name)
    row = 0
    with open_file(span.url) as raw:
        for piece in read_pieces(raw, span, b"\n"):
            if not piece.strip():
                continue
            table = _parse(piece, options, span, row)
            yield make_batch(table, source.text_column, predicates, row)
            row += table.num_rows


def check_head(source: SourceRecipe, span: Span) -> None:
    """Look at the file's first records for the columns that the recipe names, and their types.

    Raises:
        SourceError: the file holds no record, or its first ones lack a column or cannot be parsed.
    """
    with open_file(span.url) as raw:
        piece = next((piece for piece in read_pieces(raw, span, b"\n") if piece.strip()), b"")
    if not piece:
        raise SourceError(f"{span.name}: holds no record. Leave it out of `paths`.")
    head = piece[: piece.find(b"\n", _HEAD_BYTES) + 1] or piece
    _parse(head, _parse_options(source, span.name), span, 0)
    # Arrow has accepted the lines; what it leaves to be looked at later is not UTF-8.
    records = [json.loads(line.decode("utf-8-sig", "replace")) for line in head.split(b"\n") if line.strip()]
    found = dict.fromkeys(name for record in records for name in _names(record))
    for column in (source.text_column, *source.keep):
        if column not in found:
            raise SourceError(f"{span.name}: no column {column!r} in its first records; there are {', '.join(found)}")
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


def _parse_options(source: SourceRecipe, name: str) -> pa_json.ParseOptions:
    """Return options that read the recipe's columns with the types that it means, and no others."""
    tree: dict[str, Any] = {}
    columns: list[tuple[str, pa.DataType]] = [(source.text_column, pa.large_string())]
    columns += [(predicate.column, predicate.json_type()) for predicate in parse_keep(source.keep)]
    for column, kind in columns:
        *parents, leaf = column.split(".")
        place = tree
        for part in parents:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                break
        if not isinstance(place, dict) or place.get(leaf, kind) != kind:
            raise SourceError(f"{name}: {column!r} cannot be a value and a part of another column. Correct `keep`.")
        place[leaf] = kind
    return pa_json.ParseOptions(explicit_schema=pa.schema(_fields(tree)), unexpected_field_behavior="ignore")


def _fields(tree: dict[str, Any]) -> list[pa.Field]:
    return [pa.field(name, pa.struct(_fields(kind)) if isinstance(kind, dict) else kind) for name, kind in tree.items()]


def _parse(piece: bytes, options: pa_json.ParseOptions, span: Span, row: int) -> pa.Table:
    if len(piece) > _MOST_BYTES:
        raise SourceError(f"{span.name}: record {row} is longer than 2 GiB. Split it, or convert the file to parquet.")
    try:
        return _read_json(piece, options)
    except pa.ArrowInvalid as error:
        record, reason = _find_fault(piece, options, str(error))
        raise SourceError(
            f"{span.name}: record {row + record}{_part(span)}: {reason}. "
            "Mend the record, or correct the column's name or type."
        ) from error


def _find_fault(piece: bytes, options: pa_json.ParseOptions, reason: str) -> tuple[int, str]:
    """Return the first record that cannot be parsed, and why: Arrow itself may name another thread's or none."""
    lines = [line for line in piece.split(b"\n") if line.strip()]
    for index, line in enumerate(lines):
        try:
            _read_json(line, options)
        except pa.ArrowInvalid as error:
            return index, str(error).removesuffix(" in row 0")
    return 0, reason


def _read_json(piece: bytes, options: pa_json.ParseOptions) -> pa.Table:
    read_options = pa_json.ReadOptions(use_threads=False, block_size=len(piece) + 1)
    reader = cast("Any", pa.BufferReader(piece))
    return pa_json.read_json(reader, read_options=read_options, parse_options=options)


def _part(span: Span) -> str:
    return f" after byte {span.start}" if span.start else ""
