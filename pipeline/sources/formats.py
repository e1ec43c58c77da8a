"""File formats of sources: how each is cut into spans, and how a span becomes batches of Arrow text.

Streams: no more than a batch, or one row group's column chunk, is in memory. Compressed jsonl and text cannot be cut,
so each such file is one span.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from pipeline.predicates import parse_keep
from pipeline.sources import parquet
from pipeline.sources.base import BATCH_BYTES, UNIT_BYTES, Batch, SourceError, Span
from pipeline.sources.columns import column_names, make_batch, nested_type

if TYPE_CHECKING:
    from pipeline.recipe import SourceRecipe

_COMPRESSION = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_TEXT_PER_STORED_BYTE = 3.5  # zstd and gzip on English prose: 2.5 to 4; only for estimates


def is_local(url: str) -> bool:
    """Say whether a URL is a plain local path."""
    return "://" not in url and "::" not in url


def open_file(url: str) -> BinaryIO:
    """Open a file for reading bytes, whatever holds it. No decompression."""
    if is_local(url):
        return open(os.path.expanduser(url), "rb")
    import fsspec

    return cast("BinaryIO", fsspec.open(url, "rb").open())


def version_of(url: str) -> str:
    """Return what changes when the file does: size and modification time, or what the file system offers instead."""
    if is_local(url):
        status = os.stat(os.path.expanduser(url))
        return f"{status.st_size} bytes, modified {status.st_mtime_ns}"
    import fsspec

    fs, path = fsspec.url_to_fs(url)
    info = fs.info(path)
    tags = [f"{key} {info[key]}" for key in ("ETag", "etag", "sha256", "LastModified", "mtime", "CRC") if info.get(key)]
    return ", ".join([f"{info.get('size')} bytes", *tags])


def list_spans(source: SourceRecipe, url: str, name: str, format_: str) -> list[Span]:
    """Cut one file into spans.

    Raises:
        SourceError: the file is broken or lacks a column.
    """
    version = version_of(url)
    size = int(version.partition(" ")[0])
    compressed = os.path.splitext(name)[1] in _COMPRESSION
    if format_ == "parquet":
        return parquet.list_spans(source, url, name, version)
    if size == 0:
        if format_ == "file":
            return [Span(url, name, version, format_, "file", 0, 0, 0, 1, 0)]
        raise SourceError(f"{name}: the file is empty. Leave it out of `paths`.")
    if format_ == "jsonl":
        _check_jsonl(source, url, name)
    text_bytes = int(size * _TEXT_PER_STORED_BYTE) if compressed else size
    if format_ == "file" or compressed:
        kind = "file" if format_ == "file" else "b"
        return [Span(url, name, version, format_, kind, 0, size, text_bytes, 1 if kind == "file" else None, size)]
    separator = b"\n" if format_ == "jsonl" else (source.separator or "").encode()
    cuts = [0, *_find_cuts(url, size, separator), size]
    return [Span(url, name, version, format_, "b", a, b, b - a, None, b - a) for a, b in itertools.pairwise(cuts)]


def _find_cuts(url: str, size: int, separator: bytes) -> Iterator[int]:
    """Yield offsets just after a separator, near every `UNIT_BYTES`."""
    step = 1 << 20
    with open_file(url) as file:
        target = last = 0
        while (target := max(target + UNIT_BYTES, last)) < size:
            offset, window = target, b""
            while (found := window.find(separator)) < 0:
                file.seek(offset + len(window))
                more = file.read(step)
                if not more:
                    return
                # Keep only what could begin a separator: a document of gigabytes must not be held.
                keep = min(len(window), len(separator) - 1)
                offset += len(window) - keep
                window = window[len(window) - keep :] + more
            last = offset + found + len(separator)
            if last < size:
                yield last


def read_span(source: SourceRecipe, span: Span) -> Iterator[Batch]:
    """Stream one span."""
    if span.format == "parquet":
        return parquet.read_span(source, span)
    if span.format == "jsonl":
        return _read_jsonl(source, span)
    if span.format == "text":
        return _read_text(source, span)
    return _read_file(span)


def _read_file(span: Span) -> Iterator[Batch]:
    with open_file(span.url) as raw:
        data = b"".join(_blocks(raw, span))
    yield Batch(pa.array([data], pa.large_binary()), np.zeros(1, np.uint32))


def _blocks(raw: BinaryIO, span: Span) -> Iterator[bytes]:
    """Yield a span's bytes, decompressed, about `BATCH_BYTES` at a time.

    Raises:
        SourceError: a plain file ends before the span does.
    """
    compression = _COMPRESSION.get(os.path.splitext(span.name)[1])
    if compression:
        stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), compression)
        while block := stream.read(BATCH_BYTES):
            yield block
        return
    raw.seek(span.start)
    left = span.stop - span.start
    while left:
        block = raw.read(min(BATCH_BYTES, left))
        if not block:
            raise SourceError(f"{span.name}: ends {left} bytes early. The file is truncated; restore it.")
        left -= len(block)
        yield block


def _pieces(raw: BinaryIO, span: Span, separator: bytes) -> Iterator[bytes]:
    """Yield blocks that end at a separator (the span's last one may not)."""
    pending: list[bytes] = []  # joined once, when a separator comes: a long document is not copied block by block
    tail = b""
    for block in _blocks(raw, span):
        data = tail + block
        cut = data.rfind(separator)
        if cut < 0:
            keep = min(len(data), len(separator) - 1)
            pending.append(data[: len(data) - keep])
            tail = data[len(data) - keep :]
            continue
        cut += len(separator)
        yield b"".join([*pending, data[:cut]])
        pending, tail = [], data[cut:]
    if rest := b"".join([*pending, tail]):
        yield rest


def _read_text(source: SourceRecipe, span: Span) -> Iterator[Batch]:
    separator = (source.separator or "").encode()
    row = 0
    with open_file(span.url) as raw:
        for piece in _pieces(raw, span, separator):
            whole = pa.array([piece.removesuffix(separator)], pa.large_binary())
            documents = pc.split_pattern(whole, separator).flatten()
            yield Batch(documents, np.arange(row, row + len(documents), dtype=np.uint32))
            row += len(documents)


def _read_jsonl(source: SourceRecipe, span: Span) -> Iterator[Batch]:
    predicates = parse_keep(source.keep)
    schema = pa.schema([nested_type(source.text, pa.large_string())])
    for predicate in predicates:
        value = predicate.value[0] if predicate.operator == "in" else predicate.value
        kind = pa.bool_() if isinstance(value, bool) else pa.string() if isinstance(value, str) else pa.float64()
        schema = pa.unify_schemas([schema, pa.schema([nested_type(predicate.column, kind)])])
    options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    row = 0
    with open_file(span.url) as raw:
        for piece in _pieces(raw, span, b"\n"):
            if not piece.strip():
                continue
            table = _parse_json(piece, options, f"{span.name}: near record {row}")
            yield make_batch(table, source.text, predicates, row)
            row += table.num_rows


def _parse_json(piece: bytes, options: Any, where: str) -> pa.Table:
    read_options = pa_json.ReadOptions(use_threads=False, block_size=len(piece) + 1)
    try:
        return pa_json.read_json(pa.BufferReader(piece), read_options=read_options, parse_options=options)
    except pa.ArrowInvalid as error:
        raise SourceError(f"{where}: {error}. Mend the record, or correct the column's name or type.") from error


def _check_jsonl(source: SourceRecipe, url: str, name: str) -> None:
    """Look at the file's first records for the columns that the recipe names."""
    with open_file(url) as raw:
        head = Span(url, name, "", "jsonl", "b", 0, os.path.getsize(url) if is_local(url) else 1 << 62, 0, None, 0)
        piece = next(_pieces(raw, head, b"\n"))
    found = column_names(_parse_json(piece[: piece.find(b"\n", 1 << 16) + 1] or piece, None, name).schema)
    for column in (source.text, *source.keep):
        if column not in found:
            raise SourceError(f"{name}: no column {column!r} in its first records; there are {', '.join(found)}")
