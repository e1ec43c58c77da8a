"""WARC: the text records of web archives, such as Common Crawl's WET files, by `fastwarc`.

A `conversion`, `resource` or `response` record with the content type `text/plain` is a document; of an HTTP response,
its body. All others are counted: a WARC of HTML pages holds no text, and extracting it is not this module's work. A
file is one span, because only an index would tell where its records begin. Memory: a batch and one record.

fastwarc takes the end of a truncated file for its end; here lengths are compared, and decompression is Arrow's, which
refuses truncated streams.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.sources.base import NOT_PLAIN, SourceError, Span, TextBatch, describe_place
from pipeline.sources.formats.archives.members import (
    MAX_BYTES,
    Document,
    MemberError,
    check_text_columns,
    make_batches,
    too_long,
)
from pipeline.sources.formats.byte_io import open_decompressed, open_file
from pipeline.sources.formats.encodings import decode_whole
from pipeline.sources.formats.span_reader import SpanReader
from shards.errors import import_extra
from shards.terminal.display import printable

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

_COLUMNS = {
    "url": "WARC-Target-URI",
    "date": "WARC-Date",
    "id": "WARC-Record-ID",
    "languages": "WARC-Identified-Content-Language",
}
"""The columns, and the headers of a record that they hold."""
_TEXT_TYPES = ("conversion", "resource", "response")
_OTHER_TYPES = ("continuation", "metadata", "request", "revisit", "warcinfo")
_PLAIN, _HTTP = "text/plain", "application/http"
_RESPONSE = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\nContent-Length: %d\r\n\r\n"
_MAX_HEADER_BYTES = 1 << 20
_RESTORE = "The file is damaged or cut short; restore it, or leave it out of `paths`."


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Check the columns and the first record; a file is one span."""
    carried = check_text_columns(source, whole.name, _COLUMNS)
    with open_file(whole.url) as raw:
        first = next(_read_records(open_decompressed(raw, whole.name), whole), None)
    return [] if first is None else [replace(whole, carried=carried)]


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Stream the text records of a file as documents; rows count all records.

    Raises:
        SourceError: a record is malformed and the source's `max_malformed` is 0, or the file is broken or cut short.
    """
    with reader.open() as raw:
        stream = open_decompressed(raw, reader.span.name)  # when it is no longer referred to, it closes the file
        yield from make_batches(reader, _find_documents(reader, stream), _COLUMNS)


def _find_documents(reader: SpanReader, stream: Any) -> Iterator[Document]:
    for number, (headers, block) in enumerate(_read_records(stream, reader.span)):
        values: tuple[str | None, ...] = tuple(headers.get(header) for header in _COLUMNS.values())
        try:
            text = _read_text(headers, block)
        except MemberError as fault:
            where = f"{describe_place(reader.span, number)}, {printable(values[0] or 'without a URL')}"
            reader.refuse(where, fault, "Leave the file out of `paths`")
            continue
        # What holds no text is counted by its kind.
        if text is None:
            reader.not_read[_why_not_text(headers)] += 1
        else:
            yield number, decode_whole(text, reader.source.encoding), values


def _read_text(headers: Any, block: bytes | None) -> bytes | None:
    """Return a record's text; None if it holds none.

    Raises:
        MemberError: it should, and cannot be read.
    """
    if not _may_be_text(headers):
        return None
    if block is None:
        raise too_long(int(headers["Content-Length"]), MAX_BYTES)
    text = _read_http_body(block) if _content_type_of(headers) == _HTTP else block
    if text is not None and not headers.get(_COLUMNS["url"]):
        raise MemberError("has no WARC-Target-URI, which a record of its type must have")
    return text


def _read_http_body(block: bytes) -> bytes | None:
    """Return the decoded body of an HTTP response; None if it is not text.

    Raises:
        MemberError: it cannot be decoded, or is too long.
    """
    try:
        # A response is parsed alone, as a record of its own, so that decoding cannot run into the next one.
        response = next(_open_records(io.BytesIO(_RESPONSE % len(block) + block), parse_http=True, auto_decode="all"))
        if _media_type(response.http_content_type) != _PLAIN:
            return None
        text = response.reader.read(MAX_BYTES + 1)
    except OSError as error:
        raise MemberError(f"its HTTP response cannot be decoded: {error}") from error
    if len(text) > MAX_BYTES:
        raise MemberError(f"has a body of more than {MAX_BYTES:,} bytes")
    return text


def _kind_of(headers: Any) -> str:
    return (headers.get("WARC-Type") or "").lower()


def _content_type_of(headers: Any) -> str:
    return _media_type(headers.get("Content-Type"))


def _may_be_text(headers: Any) -> bool:
    kind, content_type = _kind_of(headers), _content_type_of(headers)
    return kind in _TEXT_TYPES and content_type in ((_PLAIN, _HTTP) if kind == "response" else (_PLAIN,))


def _why_not_text(headers: Any) -> str:
    kind = _kind_of(headers)
    if kind in _TEXT_TYPES:
        return f"{kind} {NOT_PLAIN}"
    return f"{kind if kind in _OTHER_TYPES else 'unknown'} record"


def _read_records(stream: Any, span: Span) -> Iterator[tuple[Any, bytes | None]]:
    """Yield the headers of a file's records, with the block of each that may be a document and is not too long.

    Raises:
        SourceError: a record's length is missing or wrong, or the file is no WARC or is cut short.
    """
    number = -1
    try:
        for record in _open_records(stream):
            number += 1
            yield record.headers, _read_block(record)
    except MemberError as fault:
        raise SourceError(f"{span.name}: record {number}: {fault}. {_RESTORE}") from fault
    except OSError as error:
        place = "its start" if number < 0 else f"the end of record {number}"
        raise SourceError(f"{span.name}: expected a WARC record at {place}: {error}. {_RESTORE}") from error


def _read_block(record: Any) -> bytes | None:
    """Read a record whole, so that its length is known to be right.

    Raises:
        MemberError: its length is missing or wrong.
    """
    stated = record.headers.get("Content-Length") or ""
    if not stated.isascii() or not stated.isdigit():
        raise MemberError(f"its Content-Length is {stated!r}; expected a number")
    # Blocks that cannot be documents are skipped, but counted: fastwarc takes a cut file for a short one.
    length = int(stated)
    block = record.reader.read() if _may_be_text(record.headers) and length <= MAX_BYTES else None
    found = record.consume() if block is None else len(block)
    if found != length:
        raise MemberError(f"has {found:,} of the {length:,} bytes that its Content-Length states")
    return block


def _media_type(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def _open_records(stream: Any, **options: Any) -> Iterator[Any]:
    warc: Any = import_extra("fastwarc.warc")
    options = {"parse_http": False, "max_header_len": _MAX_HEADER_BYTES, "stream_detect": False, **options}
    return iter(warc.ArchiveIterator(_Stream(stream), fsspec_args=False, **options))


class _Stream:
    """Bytes for fastwarc, which asks for their place."""

    def __init__(self, stream: Any):
        self._stream = stream
        self._pos = 0

    def read(self, count: int = -1) -> bytes:
        """Return up to `count` bytes."""
        block = self._stream.read(count)
        self._pos += len(block)
        return block

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._pos
