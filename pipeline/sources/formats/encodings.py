"""Text in any encoding: a stream of bytes becomes UTF-8.

Nothing is replaced: a byte that does not decode becomes a mark that is no UTF-8, so its document counts as malformed.
A byte order mark at the start of a file is removed. No encoding is guessed, but UTF-16 and UTF-32 are recognised where
UTF-8 is expected. Memory: a block. Latin-1 costs about 1 ms a megabyte.
"""

import codecs
import functools
import re
from collections.abc import Iterator
from typing import Any

from pipeline.sources.base import SourceError
from shards.terminal.display import printable

UTF8 = "utf-8"
_MARK = "tokenmill-mark"
"""The name under which Python's codecs know `_mark`."""
_MARKED = re.compile(rb"\xff([0-9a-f]{2})")
"""A byte that did not decode, in text that `decode_blocks` gives."""
_WIDE_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte order marks; that of UTF-32 begins with that of UTF-16."""
_LEAST_PRINTABLE = 0.9
LFS_POINTER, LFS_REMEDY = b"version https://git-lfs", "a pointer of Git LFS: fetch the file by `git lfs pull`"
"""What stands in the place of a file that is elsewhere, and the remedy."""
_BEFORE, _AFTER = 24, 40
"""Bytes that are shown before and after a fault."""


def _mark(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write each byte that the encoding does not decode as 0xFF, which no UTF-8 has, and its two hexadecimal digits."""
    if isinstance(error, UnicodeDecodeError):
        return "".join(f"\udcff{byte:02x}" for byte in error.object[error.start : error.end]), error.end
    assert isinstance(error, UnicodeEncodeError)
    return b"\xff" * (error.end - error.start), error.end  # of `_mark`, and surrogates that UTF-7 may hold


codecs.register_error(_MARK, _mark)  # pyright: ignore[reportArgumentType]


def decode_blocks(blocks: Iterator[bytes], encoding: str, *, is_start: bool) -> Iterator[bytes]:
    """Yield blocks of bytes in any encoding as UTF-8; characters may be cut by blocks.

    Args:
        blocks: the bytes.
        encoding: how they are encoded, as a source's `encoding` names it.
        is_start: whether they begin a file, whose byte order mark is removed.
    """
    blocks = blocks if encoding == UTF8 else _decode(blocks, encoding)
    # The mark may be cut by blocks, however small they are.
    if is_start:
        head = b""
        for block in blocks:
            head += block
            if len(head) >= len(codecs.BOM_UTF8):
                break
        if head := head.removeprefix(codecs.BOM_UTF8):
            yield head
    yield from blocks


def _decode(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(_MARK)
    for block in blocks:
        if text := decoder.decode(block):
            yield text.encode(UTF8, _MARK)
    if text := decoder.decode(b"", final=True):  # a file that ends within a character
        yield text.encode(UTF8, _MARK)


def decode_whole(data: bytes, encoding: str) -> bytes:
    """Return a whole file in any encoding as UTF-8, as `decode_blocks` does."""
    return b"".join(decode_blocks(iter([data]), encoding, is_start=True))


@functools.cache
def is_cuttable(encoding: str) -> bool:
    """Return whether an encoding can be cut at a separator's bytes: each byte is a character, or it is UTF-8."""
    if encoding == UTF8:
        return True
    # A decoder that has a state after one byte needs the bytes before a cut.
    for byte in range(256):
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        decoder.decode(bytes([byte]))
        if decoder.getstate() != (b"", 0):  # waits for more, or has another meaning for what follows
            return False
    return True


def find_wide_encoding(head: bytes) -> str:
    """Return the encoding of the first bytes of a file in UTF-16 or UTF-32; empty for other bytes.

    It is told by a byte order mark or, for text with much ASCII, by the zero bytes.
    """
    for mark, encoding in _WIDE_MARKS.items():
        if head.startswith(mark):
            return encoding
    # UTF-16 without a mark: every other byte of ASCII is zero.
    nulls = (head[::2].count(0), head[1::2].count(0))
    if 5 * max(nulls) > len(head) and 5 * min(nulls) < max(nulls):
        encoding = "utf-16-le" if nulls[1] > nulls[0] else "utf-16-be"
        text = head.decode(encoding, "replace")
        if sum(character.isprintable() or character.isspace() for character in text) > _LEAST_PRINTABLE * len(text):
            return encoding
    return ""


def refuse_wide(head: bytes, name: str) -> None:
    """Refuse a file whose bytes are read as UTF-8 and begin like UTF-16 or UTF-32, or are a pointer of Git LFS.

    Raises:
        SourceError: naming the encoding.
    """
    if head.startswith(LFS_POINTER):
        raise SourceError(f"{name}: is {LFS_REMEDY}.")
    if found := find_wide_encoding(head):
        raise SourceError(f'{name}: seems to be text in {found}; set encoding = "{found}" for all files of a source.')


def is_utf8(data: Any) -> bool:
    """Return whether bytes are text in UTF-8."""
    try:
        str(memoryview(data), "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def explain_fault(text: bytes, encoding: str) -> str:
    """Say where a text does not decode in its encoding, with some of the text around it."""
    # In another encoding than UTF-8, bytes that do not decode were marked when the file was read.
    if encoding != UTF8:
        found = _MARKED.search(text)
        if found is None:
            return f"does not decode in {encoding}"
        part = text[max(0, found.start() - _BEFORE) : found.start() + _AFTER]
        shown = _MARKED.sub(lambda mark: bytes.fromhex(mark[1].decode()), part)
        return f"byte 0x{found[1].decode()} does not decode in {encoding}: {_show(shown)}"
    try:
        text.decode()
    except UnicodeDecodeError as error:
        place = error.start
        shown = _show(text[max(0, place - _BEFORE) : place + _AFTER])
        # A file of ASCII but for its last byte is in another encoding, not cut short.
        if error.reason == "unexpected end of data" and not text[:place].isascii():
            return f"ends within a character of UTF-8, at byte {place:,}: {shown}"
        return f"byte 0x{text[place]:02x} at {place:,} is not UTF-8: {shown}"
    return ""


def _show(part: bytes) -> str:
    return f'"{printable(part.decode(UTF8, "backslashreplace"))}"'
