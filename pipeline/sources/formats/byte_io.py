"""Files as bytes: open them on any file system, decompress, stream in blocks, and cut at separators.

The separators are those that `bytes.split` finds from the start of the file. Blocks, units and a separator that
overlaps itself do not change where a document ends. Memory: one block, and the document that is being read.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import contextlib
import gzip
import io
import itertools
import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO, cast

import pyarrow as pa

from pipeline.sources.base import BATCH_BYTES, File, SourceError, Span
from pipeline.sources.formats.encodings import UTF8, decode_blocks, is_cuttable, refuse_wide
from shards.stores.files import open_named
from shards.terminal.display import printable

COMPRESSION = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""Suffixes of compressed files, and Arrow's names of their codecs."""
TEXT_PER_STORED_BYTE = 3.5
"""zstd and gzip on English prose: 2.5 to 4; only for estimates."""
MOST_BYTES = (1 << 31) - 2
"""Arrow's readers of JSON and CSV count the bytes of a block in 32 bits."""
HEAD_BYTES = 1 << 16
"""Bytes at the beginning of a file that tell its format, and UTF-16."""
_HUB_BYTES = 4 << 20
"""Bytes that a request to the Hub asks for, of a file that is read from its beginning to its end."""
_EXCERPT_BYTES = 60
_WINDOW_BYTES = 1 << 20
"""Bytes that the search for a cut reads at a time."""

BROKEN_FILE_ERRORS = (OSError, ValueError, EOFError, MemoryError, zlib.error)
"""Errors of pyarrow and fsspec for files that are broken, missing, out of reach or too large for the memory."""


def compression_of(name: str) -> str | None:
    """Return the codec that decompresses a file's bytes, by its name; None for other files."""
    return COMPRESSION.get(os.path.splitext(name)[1])


def is_local(url: str) -> bool:
    """Say whether the bytes at a URL are on a plain local path."""
    return "://" not in url


@contextlib.contextmanager
def open_file(file: File | Span) -> Generator[BinaryIO]:
    """Open a file on any file system for reading bytes, without decompression; one on the Hub in the given version."""
    if is_local(file.url):
        with open_named(file.url) as opened:
            yield opened
        return
    if file.url.startswith("hf://"):
        from pipeline.sources.hub_file import RangeFile

        with io.BufferedReader(RangeFile(file.url, file.version), _HUB_BYTES) as opened:
            yield cast("BinaryIO", opened)
        return
    fs, path = _open_file_system(file.url)
    with fs.open(path, "rb") as opened:
        yield cast("BinaryIO", opened)


def read_file_version(url: str) -> str:
    """Return a text that changes with a file's bytes: size and modification time, or what its file system offers."""
    if is_local(url):
        return version_of_status(os.stat(url))
    fs, path = _open_file_system(url)
    info = fs.info(path)
    if info.get("size") is None:
        raise SourceError(f"{url}: the server does not say how large the file is, so it cannot be cut. Download it.")
    # Whatever the file system knows that changes with the bytes.
    tags = [f"{key} {info[key]}" for key in ("ETag", "etag", "sha256", "LastModified", "mtime") if info.get(key)]
    return ", ".join([f"{info['size']} bytes", *tags])


def version_of_status(status: os.stat_result) -> str:
    """Return the version of a local file whose bytes are read, from its status."""
    return f"{status.st_size} bytes, modified {status.st_mtime_ns}"


def _open_file_system(url: str) -> tuple[Any, str]:
    import fsspec

    return fsspec.url_to_fs(url)


def open_decompressed(raw: BinaryIO, name: str) -> pa.NativeFile | BinaryIO:
    """Return a stream of a file's bytes, decompressed if its name tells so; several streams in a row are one."""
    compression = compression_of(name)
    if compression is None:
        return raw
    if compression == "gzip":
        return cast("BinaryIO", gzip.GzipFile(fileobj=raw))  # zeros that pad the file are skipped, as others do
    file: Any = pa.PythonFile(cast("Any", raw), mode="r")
    return pa.CompressedInputStream(file, cast("Any", compression))


def read_blocks(raw: BinaryIO, span: Span) -> Iterator[bytes]:
    """Yield a span's bytes, decompressed, about `BATCH_BYTES` at a time.

    Raises:
        SourceError: a plain file ends before the span does.
        OSError: a compressed file is truncated or broken.
    """
    if compression_of(span.name):
        stream = open_decompressed(raw, span.name)
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


def excerpt(data: bytes) -> str:
    """Return the beginning of a file's bytes as text for a message."""
    return printable(data[:_EXCERPT_BYTES].decode("utf-8", "backslashreplace"))


def read_text_blocks(raw: BinaryIO, span: Span, encoding: str) -> Iterator[bytes]:
    """Yield a span's bytes as text in UTF-8, decompressed, without a byte order mark; or else like `read_blocks`.

    Raises:
        SourceError: the file is in UTF-16 or UTF-32, and `encoding` is UTF-8.
    """
    blocks = read_blocks(raw, span)
    if span.start == 0 and encoding == UTF8:
        head = next(blocks, b"")
        refuse_wide(head[:HEAD_BYTES], span.name)
        blocks = itertools.chain([head], blocks)
    return decode_blocks(blocks, encoding, is_start=span.start == 0)


def _cut(whole: Span, unit_bytes: int, find: Callable[[BinaryIO, int], Iterable[int]], *, can_cut: bool) -> list[Span]:
    """Cut a plain file's bytes into spans of about `unit_bytes` of text.

    Args:
        whole: the whole file.
        unit_bytes: the text of a span; a file of no more is one span, and so is a compressed one.
        find: returns the places to cut the file at, about so many bytes apart.
        can_cut: whether its encoding can be cut.
    """
    if compression_of(whole.name) or not can_cut or whole.text_bytes <= unit_bytes:
        return [whole]
    per_byte = max(1, whole.text_bytes // whole.stop)
    with open_file(whole) as raw:
        cuts = [0, *(place for place in find(raw, unit_bytes // per_byte) if place < whole.stop), whole.stop]
    return [
        replace(whole, start=start, stop=stop, text_bytes=(stop - start) * per_byte, stored_bytes=stop - start)
        for start, stop in itertools.pairwise(cuts)
    ]


def cut_records(whole: Span, unit_bytes: int, encoding: str, read: Callable[[BinaryIO], Iterable[bytes]]) -> list[Span]:
    """Cut a file where the pieces of whole records end that `read` gives; one that is not plain UTF-8, nowhere."""

    def find(raw: BinaryIO, least: int) -> Iterator[int]:
        last = 0
        for place in itertools.accumulate(map(len, read(raw))):
            if place - last >= least:
                yield place
                last = place

    return _cut(whole, unit_bytes, find, can_cut=encoding == UTF8)


def cut_at(separator: str, whole: Span, unit_bytes: int, encoding: str) -> list[Span]:
    """Cut a file's bytes after separators into spans of up to `unit_bytes` of text.

    A compressed file is one span, and so is one in an encoding whose characters have several bytes, other than UTF-8.
    """
    if not whole.stop:
        return []
    # The separator is searched in the file's own bytes.
    return _cut(
        whole,
        unit_bytes,
        lambda raw, least: find_boundaries(raw, whole.stop, separator.encode(encoding), least),
        can_cut=is_cuttable(encoding),
    )


def find_boundaries(raw: BinaryIO, size: int, separator: bytes, unit_bytes: int) -> Iterator[int]:
    """Yield offsets in bytes just after a separator, near every `unit_bytes` of a plain file."""
    margin = len(separator) - 1
    target = last = 0
    while (target := max(target, last) // unit_bytes * unit_bytes + unit_bytes) < size:
        # The bytes before the target show whether an occurrence overlaps an earlier one.
        offset = max(0, target - margin)
        window = b""
        while (found := first_certain(window, separator, max(margin, target - offset))) < 0:
            raw.seek(offset + len(window))
            more = raw.read(_WINDOW_BYTES)
            if not more:
                return
            # Keep only the bytes that the next occurrence may need: a document of gigabytes must not stay in memory.
            gone = max(0, len(window) - 2 * margin)
            window = window[gone:] + more
            offset += gone
        last = offset + found + len(separator)
        yield last


def last_end(data: bytes, separator: bytes) -> int:
    """Return where the last separator in bytes ends, as `split` finds them from the start; 0 if there is none."""
    last = data.rfind(separator)
    if last < 0:
        return 0
    # If it overlaps itself, as in "a\n\n\n", the last occurrence is not the one that split takes.
    if any(separator.startswith(separator[-length:]) for length in range(1, len(separator))):
        return len(data) - len(data.split(separator)[-1])
    return last + len(separator)


def first_certain(window: bytes, separator: bytes, start: int) -> int:
    """Return the first separator in bytes from `start` on that no earlier one overlaps: every split takes it."""
    found = window.find(separator, start)
    while found >= 0 and window.find(separator, max(0, found - len(separator) + 1)) < found:
        found = window.find(separator, found + 1)
    return found
