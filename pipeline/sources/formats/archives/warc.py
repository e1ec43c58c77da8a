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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.sources.base import NOT_PLAIN, Columns, SourceError, Span, TextBatch, describe_place
from pipeline.sources.formats.archives.documents import TEXT, Documents, MemberError
from pipeline.sources.formats.archives.members import MAX_BYTES
from pipeline.sources.formats.byte_io import open_decompressed, open_file
from pipeline.sources.formats.columns import check_columns
from pipeline.sources.formats.encodings import decode_whole
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
_SCHEMA = pa.schema([(TEXT, pa.large_string()), *((name, pa.string()) for name in _COLUMNS)])
_MAX_HEADER_BYTES = 1 << 20
_RESTORE = "The file is damaged or cut short; restore it, or leave it out of `paths`."


@dataclass(frozen=True, slots=True)
class _Record:
    """A record of the file. Only one that may be a document has its block."""

    number: int
    kind: str
    content_type: str
    length: int
    values: tuple[str | None, ...]
    """Those of `_COLUMNS`."""
    block: bytes | None


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Check the columns and the first record; a file is one span."""
    carried = check_columns(_SCHEMA, source, whole.name, has_text_column=False)
    with open_file(whole.url) as raw:
        first = next(_iter_records(open_decompressed(raw, whole.name), whole), None)
    return [] if first is None else [replace(whole, carried=carried)]


def read_span(source: SourceRecipe, span: Span, carried: Columns = ()) -> Iterator[TextBatch]:
    """Stream the text records of a file as documents; rows count all records.

    Raises:
        SourceError: a record is malformed and the source's `max_malformed` is 0, or the file is broken or cut short.
    """
    documents = Documents(source, span, carried, list(_COLUMNS))
    with open_file(span.url) as raw:
        stream = open_decompressed(raw, span.name)  # when it is no longer referred to, it closes the file
        for record in _iter_records(stream, span):
            try:
                text = _read_text(record)
            except MemberError as fault:
                where = describe_place(span, record.number)
                where += f", {printable(record.values[0] or 'without a URL')}"
                documents.refuse(where, fault, "Leave the file out of `paths`")
                continue
            # What holds no text is counted by its kind.
            if text is None:
                documents.not_read[_why_not_text(record)] += 1
                continue
            documents.add(record.number, decode_whole(text, source.encoding), *record.values)
            if documents.is_full:
                yield documents.take(raw.tell())
        yield documents.take(raw.tell())


def _read_text(record: _Record) -> bytes | None:
    """Return a record's text; None if it holds none.

    Raises:
        MemberError: it should, and cannot be read.
    """
    if not _may_be_text(record.kind, record.content_type):
        return None
    if record.block is None:
        raise MemberError(f"is {record.length:,} bytes long; a document has at most {MAX_BYTES:,}")
    text = _read_http_body(record.block) if record.content_type == _HTTP else record.block
    if text is not None and not record.values[0]:
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


def _may_be_text(kind: str, content_type: str) -> bool:
    return kind in _TEXT_TYPES and content_type in ((_PLAIN, _HTTP) if kind == "response" else (_PLAIN,))


def _why_not_text(record: _Record) -> str:
    if record.kind in _TEXT_TYPES:
        return f"{record.kind} {NOT_PLAIN}"
    return f"{record.kind if record.kind in _OTHER_TYPES else 'unknown'} record"


def _iter_records(stream: Any, span: Span) -> Iterator[_Record]:
    """Yield the records of a file.

    Raises:
        SourceError: a record's length is missing or wrong, or the file is no WARC or is cut short.
    """
    number = -1
    try:
        for number, record in enumerate(_open_records(stream)):
            yield _read_record(record, number)
    except MemberError as fault:
        raise SourceError(f"{span.name}: record {number}: {fault}. {_RESTORE}") from fault
    except OSError as error:
        place = "its start" if number < 0 else f"the end of record {number}"
        raise SourceError(f"{span.name}: expected a WARC record at {place}: {error}. {_RESTORE}") from error


def _read_record(record: Any, number: int) -> _Record:
    """Read a record whole, so that its length is known to be right.

    Raises:
        MemberError: its length is missing or wrong.
    """
    headers = record.headers
    stated = headers.get("Content-Length") or ""
    if not stated.isascii() or not stated.isdigit():
        raise MemberError(f"its Content-Length is {stated!r}; expected a number")
    # Blocks that cannot be documents are skipped, but counted: fastwarc takes a cut file for a short one.
    length = int(stated)
    kind, content_type = (headers.get("WARC-Type") or "").lower(), _media_type(headers.get("Content-Type"))
    block = record.reader.read() if _may_be_text(kind, content_type) and length <= MAX_BYTES else None
    found = record.consume() if block is None else len(block)
    if found != length:
        raise MemberError(f"has {found:,} of the {length:,} bytes that its Content-Length states")
    values = tuple(headers.get(header) for header in _COLUMNS.values())
    return _Record(number, kind, content_type, length, values, block)


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
