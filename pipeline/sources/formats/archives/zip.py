"""zip archives: each regular member is a document. Nothing is unpacked.

The directory at the end of the file lists the members; a span is a range of them in its order. Python's `zipfile` holds
the whole directory in memory, 0.6 KB a member; here it is streamed, and a worker holds the entries of one span. Two
entries whose contents overlap make an archive a bomb, and are refused. Each content is checked by its CRC.
"""

from __future__ import annotations

import itertools
import stat
import struct
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from pipeline.sources.base import Group, SourceError, Span, TextBatch, join_groups
from pipeline.sources.formats.archives.members import (
    MAX_BYTES,
    Member,
    MemberError,
    MemberKind,
    check_text_columns,
    read_members,
)
from pipeline.sources.formats.byte_io import open_file
from pipeline.sources.formats.span_reader import SpanReader
from shards.errors import plural

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

SPAN_MEMBERS = 1 << 16
"""Most members in a span: a worker holds their entries, 0.3 KB each."""
_END = struct.Struct("<4sHHHHIIH")
_END_64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR_64 = struct.Struct("<4sIQI")
_ENTRY = struct.Struct("<4sBBHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_MAX_COMMENT = (1 << 16) - 1
_UTF8_NAME, _ENCRYPTED = 1 << 11, 1 << 0 | 1 << 6
_STORED, _DEFLATED = 0, 8
_METHODS = {1: "Shrink", 6: "Implode", 9: "Deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "xz", 99: "AES"}
_UNIX = 3
_MOST_STORED = MAX_BYTES + (1 << 20)  # Deflate adds 5 bytes to 16 KB that it cannot make smaller


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Check the columns and the directory, and cut an archive into ranges of members with up to `unit_bytes` of text.

    An empty file has none.

    Raises:
        SourceError: the archive is not whole, or its members overlap.
    """
    if not whole.stop:
        return []
    whole = replace(whole, kind="m", carried=check_text_columns(source, whole.name))
    offsets, lengths = array("Q"), array("Q")

    def list_groups(raw: BinaryIO) -> Iterator[Group]:
        for member in _read_directory(raw, whole):
            offsets.append(member.offset)
            lengths.append(member.stored_bytes)
            yield Group(1, member.size, member.stored_bytes)

    with open_file(whole.url) as raw:
        spans = join_groups(whole, list_groups(raw), unit_bytes, SPAN_MEMBERS)
    _refuse_overlaps(whole, np.array(offsets), np.array(lengths))
    return spans


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Stream the members of a span as documents.

    Raises:
        SourceError: a member is malformed and the source's `max_malformed` is 0, or the archive is broken.
    """
    span = reader.span
    with reader.open() as raw:
        # The directory of a span is held, not that of the archive.
        members = list(itertools.islice(_read_directory(raw, span, span.start), span.stop - span.start))
        yield from read_members(reader, members)


def _refuse_overlaps(whole: Span, offsets: np.ndarray, lengths: np.ndarray) -> None:
    """Refuse an archive whose members share bytes: some kilobytes can hold petabytes in that way."""
    # In the order of the file, each member must end before the next one begins.
    order = np.argsort(offsets, kind="stable")
    starts, stops = offsets[order], (offsets + lengths)[order] + np.uint64(_LOCAL.size)
    if (stops[:-1] > starts[1:]).any():
        raise _broken(whole, "holds members whose contents overlap, as in a bomb")


def _read_directory(raw: BinaryIO, span: Span, first: int = 0) -> Iterator[Member]:
    """Yield the members of the directory, in order, from a number on; those before are passed by, not parsed."""
    start, size, count, base = _find_directory(raw, span)
    raw.seek(start)
    for number in range(count):
        head = raw.read(_ENTRY.size)
        if len(head) < _ENTRY.size or head[:4] != b"PK\1\2":
            raise _broken(span, f"lists {plural(number, 'member')}, not {count}: its directory is damaged")
        fields = _ENTRY.unpack(head)
        name_bytes, extra_bytes, comment_bytes = fields[11:14]
        rest = raw.read(name_bytes + extra_bytes + comment_bytes)
        if number >= first:
            extra = rest[name_bytes : name_bytes + extra_bytes]
            yield _parse_entry(raw, span, fields, rest[:name_bytes], extra, base)
    if raw.tell() != start + size:
        raise _broken(span, f"has a directory of {raw.tell() - start} bytes, not {size}: it is damaged")


def _parse_entry(raw: BinaryIO, span: Span, fields: tuple[int, ...], name: bytes, extra: bytes, base: int) -> Member:
    _, _, system, _, flags, method, _, _, crc, stored, size, _, _, _, _, _, attributes, offset = fields
    if 0xFFFFFFFF in (stored, size, offset):
        stored, size, offset = _read_zip64(span, extra, stored, size, offset)
    # Offsets count from the start of the archive, before which other bytes may stand.
    offset += base
    if offset < 0 or offset + stored > span.file_bytes:
        raise _broken(span, f"lists a member at byte {offset} that is not in the file: it is cut short or damaged")
    text = name.decode("utf-8", "backslashreplace") if flags & _UTF8_NAME else name.decode("cp437")
    read = partial(_read, raw, flags, method, crc, stored, size, offset)
    return Member(text, _kind_of(text, system, attributes >> 16), size, offset, stored, read)


def _read_zip64(span: Span, extra: bytes, *values: int) -> list[int]:
    """Return an entry's sizes and offset, those of 64 bits from its extra fields."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == 1:
            numbers = iter(struct.unpack_from(f"<{length // 8}Q", extra[: 4 + length].ljust(4 + length, b"\0"), 4))
            return [next(numbers, value) if value == 0xFFFFFFFF else value for value in values]
        extra = extra[4 + length :]
    raise _broken(span, "lists a member without its size of 64 bits: it is damaged")


def _kind_of(name: str, system: int, mode: int) -> MemberKind:
    if name.endswith("/"):
        return "folder"
    kind = stat.S_IFMT(mode) if system == _UNIX else 0
    if kind in (0, stat.S_IFREG):
        return "file"
    return "link" if kind == stat.S_IFLNK else "device"


def _find_directory(raw: BinaryIO, span: Span) -> tuple[int, int, int, int]:
    """Return where the directory is: its start, its bytes, its number of entries, and what is added to all offsets."""
    size = span.file_bytes
    # The end record is at the end, before a comment of its stated length.
    tail_start = max(0, size - _END.size - _MAX_COMMENT)
    raw.seek(tail_start)
    tail = raw.read(size - tail_start)
    at = len(tail)
    while (at := tail.rfind(b"PK\5\6", 0, at)) >= 0:
        if len(tail) - at >= _END.size and _END.unpack_from(tail, at)[7] == len(tail) - at - _END.size:
            break
    else:
        raise _broken(span, "is not a whole zip archive: it has no directory at its end. It may be cut short")
    _, disk, disk_of_directory, _, count, length, offset, _ = _END.unpack_from(tail, at)
    end = tail_start + at
    if 0xFFFF in (disk, count) or 0xFFFFFFFF in (length, offset):
        end, disk, disk_of_directory, count, length, offset = _find_directory_64(raw, span, end, tail[at:])
    # The directory ends where its end record begins: what stands before the archive moves all offsets.
    start = end - length
    if disk or disk_of_directory:
        raise _broken(span, "is one part of several of an archive")
    if start < 0 or start < offset:
        raise _broken(span, "is not a whole zip archive: its directory is not where its end says")
    return start, length, count, start - offset


def _find_directory_64(raw: BinaryIO, span: Span, end: int, record: bytes) -> tuple[int, int, int, int, int, int]:
    _, disk, disk_of_directory, _, count, length, offset, _ = _END.unpack_from(record)
    raw.seek(max(0, end - _LOCATOR_64.size))
    locator = raw.read(_LOCATOR_64.size)
    if locator[:4] != b"PK\6\7":  # a small archive may have a number that looks like the mark of a large one
        return end, disk, disk_of_directory, count, length, offset
    raw.seek(end - _LOCATOR_64.size - _END_64.size)
    head = raw.read(_END_64.size)
    if head[:4] != b"PK\6\6":
        raise _broken(span, "is not a whole zip archive: the record of its directory is damaged")
    _, _, _, _, disk, disk_of_directory, _, count, length, offset = _END_64.unpack(head)
    return end - _LOCATOR_64.size - _END_64.size, disk, disk_of_directory, count, length, offset


def _read(raw: BinaryIO, flags: int, method: int, crc: int, stored_bytes: int, size: int, offset: int) -> bytes:
    """Return a member's content, of the size and CRC that the directory states."""
    if flags & _ENCRYPTED:
        raise MemberError("is encrypted")
    if method not in (_STORED, _DEFLATED):
        raise MemberError(f"is compressed by {_METHODS.get(method, f'method {method}')}; Deflate is read")
    # The header beside the content repeats the names in another length.
    raw.seek(offset)
    head = raw.read(_LOCAL.size)
    if len(head) < _LOCAL.size or head[:4] != b"PK\3\4":
        raise MemberError("is not where the directory says")
    name_bytes, extra_bytes = _LOCAL.unpack(head)[9:]
    raw.seek(name_bytes + extra_bytes, 1)
    stored = raw.read(min(stored_bytes, _MOST_STORED))
    # One byte more than stated is enough to see a bomb.
    data = stored
    if method == _DEFLATED:
        decoder = zlib.decompressobj(-15)
        try:
            data = decoder.decompress(stored, size + 1)
        except zlib.error as error:
            raise MemberError(f"cannot be decompressed: {error}") from error
    if len(data) != size:
        raise MemberError(f"holds {'more' if len(data) > size else 'fewer'} bytes than the {size} stated")
    if zlib.crc32(data) != crc:
        raise MemberError("is damaged: its CRC differs")
    return data


def _broken(span: Span, fault: str) -> SourceError:
    return SourceError(f"{span.name}: {fault}. Restore the file, or leave it out of `paths`.")
