"""The members of a tar archive, header by header, without their contents unless they are asked for.

Python's `tarfile` parses a header. Walking from header to header is done here, because `tarfile` takes a damaged
header, or a missing end, for the end of the archive, so that members would be lost in silence.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO

from pipeline.sources.base import SourceError, Span
from pipeline.sources.formats.archives.members import MAX_BYTES, Member, MemberKind, readable_name
from pipeline.sources.formats.byte_io import cut_after, is_compressed, is_local, open_decompressed, open_file

_BLOCK = tarfile.BLOCKSIZE
_SKIP_BYTES = 1 << 20
_SPARSE = "GNU.sparse"
_SPARSE_CONTINUED, _SPARSE_MAP_CONTINUED = 482, 504
"""Places of the bytes which say that another block of a sparse file's map follows."""
_MAX_HEADER_BYTES = 1 << 20
"""The most bytes of the headers that extend another one: names and times take a few hundred."""
_LONG_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
_KINDS: dict[bytes, MemberKind] = {
    **dict.fromkeys((tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE), "file"),
    **dict.fromkeys((tarfile.LNKTYPE, tarfile.SYMTYPE), "link"),
    **dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE), "device"),
    tarfile.DIRTYPE: "folder",
    tarfile.GNUTYPE_SPARSE: "sparse file",
}


class Walk:
    """One pass over a span of an archive."""

    def __init__(self, raw: BinaryIO, span: Span):
        self._span = span
        self._compressed = is_compressed(span.name)
        self._stream = open_decompressed(raw, span.name)
        self._pos = 0 if self._compressed else span.start
        self._shared: dict[str, str] = {}  # what the archive states for all members that follow
        if self._pos:
            self._stream.seek(self._pos)

    def members(self) -> Iterator[Member]:
        """Yield the members, in order; each begins with its first header.

        Raises:
            SourceError: the archive is damaged or cut short, or does not end where it says that it ends.
            OSError: it cannot be decompressed.
        """
        while self._compressed or self._pos < self._span.stop:
            # One member: headers that extend it, its own header, its content up to a whole block.
            offset = self._pos
            header, extended = self._read_headers()
            if header is None:
                self._check_end(offset)
                return
            stored = self._size(header, extended)
            kind = "sparse file" if _SPARSE in extended else _KINDS.get(header.type, "file")
            # These may state the size of what they point at, and hold nothing.
            if kind in ("link", "device", "folder"):
                stored = 0
            data, end = self._pos, self._pos + -(-stored // _BLOCK) * _BLOCK
            name = readable_name(extended.get("path", header.name))

            def read(data: int = data, stored: int = stored) -> bytes:
                assert self._pos == data
                return self._read(stored)

            yield Member(name, kind, stored, offset, stored, read)
            self._skip(end - self._pos)
        if self._pos >= self._span.stop == self._span.file_bytes:
            raise self._broken("ends without the two empty blocks that end an archive: it is cut short")

    def _read_headers(self) -> tuple[tarfile.TarInfo | None, dict[str, str]]:
        """Read a member's header and those that extend it; None at the end of the archive."""
        extended: dict[str, str] = {}
        while True:
            block = self._read(_BLOCK)
            try:
                header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.TarError as error:
                if not any(block):
                    return None, {}
                if not self._pos - _BLOCK:
                    raise self._broken("is not a tar archive") from error
                raise self._broken(f"holds no header of a member at byte {self._pos - _BLOCK}: {error}") from error
            if header.type not in (*_LONG_NAMES, *_PAX):
                is_continued = header.type == tarfile.GNUTYPE_SPARSE and block[_SPARSE_CONTINUED]
                while is_continued:
                    is_continued = self._read(_BLOCK)[_SPARSE_MAP_CONTINUED]
                return header, {**self._shared, **extended}
            # A header that extends the next one: a long name, or records of the pax format.
            if not 0 <= header.size <= _MAX_HEADER_BYTES:
                raise self._broken(f"states a header of {header.size} bytes at byte {self._pos - _BLOCK}")
            data = self._read(header.size)
            self._skip(-header.size % _BLOCK)
            if header.type == tarfile.GNUTYPE_LONGNAME:
                extended["path"] = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif header.type in _PAX:
                records = self._parse_pax(data)
                (self._shared if header.type == tarfile.XGLTYPE else extended).update(records)

    def _parse_pax(self, data: bytes) -> dict[str, str]:
        """Parse records such as `18 path=some/name\\n`."""
        records: dict[str, str] = {}
        while data.strip(b"\0"):
            # Each record begins with its own length, line end included.
            digits, _, _ = data.partition(b" ")
            length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
            key, equals, value = data[len(digits) + 1 : length - 1].partition(b"=")
            if not equals or data[length - 1 : length] != b"\n":
                raise self._broken(f"holds a damaged extended header before byte {self._pos}")
            if key in (b"path", b"size"):
                records[key.decode()] = value.decode("utf-8", "surrogateescape")
            elif key.startswith(b"GNU.sparse."):
                records[_SPARSE] = ""
            data = data[length:]
        return records

    def _size(self, header: tarfile.TarInfo, extended: dict[str, str]) -> int:
        stated = extended.get("size", str(header.size))
        if not stated.isascii() or not stated.isdigit():
            raise self._broken(f"states {stated} bytes for the member {readable_name(header.name)!r}")
        return int(stated)

    def _read(self, count: int) -> bytes:
        blocks: list[bytes] = []
        while count:
            block = self._stream.read(min(count, MAX_BYTES))
            if not block:
                raise self._broken(f"ends {count} bytes early: it is cut short")
            blocks.append(block)
            count -= len(block)
            self._pos += len(block)
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _skip(self, count: int) -> None:
        # A plain file is left out by a seek, a compressed one must be read.
        if count and not self._compressed:
            if self._pos + count > self._span.stop:
                missing = self._pos + count - self._span.stop
                raise self._broken(f"ends {missing} bytes early: it is cut short")
            self._pos += count
            self._stream.seek(self._pos)
            return
        while count:
            count -= len(self._read(min(count, _SKIP_BYTES)))

    def _check_end(self, offset: int) -> None:
        """Check that nothing but zeros follows: so no member is lost, and a compressed stream is whole."""
        while block := self._stream.read(_SKIP_BYTES):
            if block.strip(b"\0"):
                raise self._broken(f"holds data after its end at byte {offset}; archives joined into one are not read")

    def _broken(self, fault: str) -> SourceError:
        return SourceError(f"{self._span.name}: {fault}. Restore the file, or leave it out of `paths`.")


def cut_at_members(
    whole: Span, unit_bytes: int, find_starts: Callable[[Iterator[Member]], Iterator[int]]
) -> list[Span]:
    """Cut an archive after every `unit_bytes` or a little more; one that is compressed or remote is one span.

    Args:
        whole: the whole archive. Its first header is checked.
        unit_bytes: the least bytes of a span but the last.
        find_starts: yields the places where the archive may be cut, of its members.

    Raises:
        SourceError: the archive is broken.
    """
    # Only a plain local file can be entered in the middle.
    with open_file(whole.url) as raw:
        members = Walk(raw, whole).members()
        if is_local(whole.url) and not is_compressed(whole.name) and whole.stop > unit_bytes:
            return cut_after(whole, find_starts(members), unit_bytes)
        return [] if next(members, None) is None else [whole]
