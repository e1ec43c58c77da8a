"""The tokens file: the Zstandard seekable format, written frame by frame and read back by range.

A file is a row of independent zstd frames, each holding `FRAME_BYTES` of tokens (the last may hold less) with its
content checksum, and one skippable frame with the seek table. Any zstd tool decompresses it to the plain token array.
Memory: one frame while writing (with threads, two for each), the requested range while reading. Sizes that a file
declares are checked against the file's real size before anything is allocated.

Levels are tuned for text and programs. In tokens of two bytes a match of three tokens is 6 bytes and pays off, so that
one small hash table over 6 bytes finds most of what level 3 finds with two (docs/lab/compression.md).
Which parameters were used is nowhere in the file: any Zstandard decompressor reads it, with a window of 1 MiB.

Source: the Zstandard seekable format, version 0.1.0 (contrib/seekable_format in the zstd project).
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash
import zstandard

from shards.errors import lacks_memory, plural

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from shards.stores.store import StoredFile

FRAME_BYTES = 1 << 20
"""Decompressed bytes in each frame but the last: 524,288 uint16 tokens."""

MAX_COMPRESSED_FRAME_BYTES = FRAME_BYTES + (1 << 16)
"""A frame that compresses worse than this is refused: zstd's own bound for 1 MiB is 4 KiB above it."""

TAIL_BYTES = 1 << 13
"""Read at once at a file's end for the seek table: enough for 1,000 frames, a shard of a billion bytes of tokens."""

SKIPPABLE_MAGIC = 0x184D2A5E
SEEKABLE_MAGIC = 0x8F92EAB1
_HEADER = struct.Struct("<II")  # skippable magic, bytes that follow
_ENTRY = struct.Struct("<II")  # compressed bytes, decompressed bytes
_FOOTER = struct.Struct("<IBI")  # frames, descriptor, seekable magic

COMPARED_LEVEL = 3
"""The level with which the parameters below are compared."""
MOST_LARGER = 1.01
"""How much larger than level 3 a file may be, as a ratio of sizes."""

_PARAMETERS = {
    2: {"strategy": zstandard.STRATEGY_FAST, "min_match": 6, "hash_log": 17, "chain_log": 6},
    4: {"strategy": zstandard.STRATEGY_DFAST, "min_match": 5, "hash_log": 16, "chain_log": 15},
}
"""Zstandard's parameters by bytes of a token."""


class CodecError(ValueError):
    """A tokens file that breaks the format: its seek table, or a frame."""


class SeekableWriter:
    """Compress a stream of bytes into seekable zstd frames.

    Deterministic: the bytes written depend on the bytes given, the level and the zstd version, not on how the
    input is cut into `write` calls, nor on the threads. The file object is neither closed nor synced.

    Attributes:
        bytes_written: of the file so far.
        sha256: after `close`, the hex SHA-256 of the file.
        content_sha256: that of the input.
        checksums: by SHA-256 the XXH3-128 of the same bytes, of both.
    """

    def __init__(self, file: BinaryIO, *, level: int | None = None, token_bytes: int = 2, threads: int = 1):
        """Set where a tokens file's frames are written.

        Args:
            file: gets the frames.
            level: how they are compressed, as for `choose_compressor`.
            token_bytes: bytes of a token, 2 or 4.
            threads: with more than one, this many threads compress frames while the calling one hashes and writes. What
                `write` is given must not change before `close`, and up to two frames for each thread are in memory.
        """
        self._file = file
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "compress") if threads > 1 else None
        self._waiting = deque[tuple[Future[bytes], int]]()
        self._compress = choose_compressor(level, token_bytes=token_bytes)
        self._pending = bytearray()
        self._entries: list[tuple[int, int]] = []
        self._file_hash = hashlib.sha256()
        self._content_hash = hashlib.sha256()
        self._file_xxh3, self._content_xxh3 = xxhash.xxh3_128(), xxhash.xxh3_128()
        self.bytes_written = 0

    def write(self, data: Buffer) -> None:
        """Append bytes. Whole frames are compressed and written at once; the rest waits."""
        view = memoryview(data).cast("B")
        start = 0
        if self._pending:
            start = min(FRAME_BYTES - len(self._pending), len(view))
            self._pending += view[:start]
            if len(self._pending) < FRAME_BYTES:
                return
            self._write_frame(self._pending)
            self._pending = bytearray()
        while len(view) - start >= FRAME_BYTES:
            self._write_frame(view[start : start + FRAME_BYTES])
            start += FRAME_BYTES
        self._pending += view[start:]

    def close(self) -> None:
        """Write the last frame and the seek table."""
        if self._pending:
            self._write_frame(self._pending)
        while self._waiting:
            self._write_first()
        if self._pool is not None:
            self._pool.shutdown()
        entries = b"".join(_ENTRY.pack(*entry) for entry in self._entries)
        footer = _FOOTER.pack(len(self._entries), 0, SEEKABLE_MAGIC)
        self._write_raw(_HEADER.pack(SKIPPABLE_MAGIC, len(entries) + len(footer)) + entries + footer)
        self.sha256, self.content_sha256 = self._file_hash.hexdigest(), self._content_hash.hexdigest()
        self.checksums = {self.sha256: self._file_xxh3.hexdigest(), self.content_sha256: self._content_xxh3.hexdigest()}

    def _write_frame(self, content: bytearray | memoryview) -> None:
        self._content_hash.update(content)
        self._content_xxh3.update(content)
        # The first frame may decide how the others are compressed.
        if self._pool is None or not self._entries:
            self._add(self._compress(content), len(content))
            return
        self._waiting.append((self._pool.submit(self._compress, content), len(content)))
        if len(self._waiting) == 2 * self._threads:
            self._write_first()

    def _write_first(self) -> None:
        """Write the first of the frames that threads compress."""
        future, size = self._waiting.popleft()
        self._add(future.result(), size)

    def _add(self, frame: bytes, size: int) -> None:
        self._entries.append((len(frame), size))
        self._write_raw(frame)

    def _write_raw(self, data: bytes) -> None:
        self._file_hash.update(data)
        self._file_xxh3.update(data)
        self._file.write(data)
        self.bytes_written += len(data)


Compress = Callable[[bytearray | memoryview], bytes]
"""Makes one frame of its content."""


def _in_each_thread(**options: Any) -> Compress:
    """Return the function that compresses frames in a context of the thread that calls it: no two may share one."""
    own = threading.local()

    def compress(content: bytearray | memoryview) -> bytes:
        if not hasattr(own, "compressor"):
            own.compressor = zstandard.ZstdCompressor(**options)
        return own.compressor.compress(content)

    return compress


_level = partial(_in_each_thread, write_checksum=True, write_content_size=True)


def choose_compressor(level: int | None, *, token_bytes: int) -> Compress:
    """Return the function that makes the frames of one tokens file, with content size and checksum, in any thread.

    Without a level the first frame is compressed twice: with level 3, too. If the parameters for tokens give more than
    `MOST_LARGER` of that, as on mathematics and code, level 3 compresses the whole file. A shard's documents are in
    random order, so that its first frame is like the others. The bytes depend on the frames alone.

    Args:
        level: a level of Zstandard; None for the parameters for tokens.
        token_bytes: bytes of a token, 2 or 4.
    """
    if level is not None:
        return _level(level=level)
    # A frame has 1 MiB, so that a larger window would be of no use.
    common = {"search_log": 1, "window_log": 20, "write_content_size": 1, "write_checksum": 1}
    parameters = zstandard.ZstdCompressionParameters(**(common | _PARAMETERS[token_bytes]))
    fast, before = _in_each_thread(compression_params=parameters), _level(level=COMPARED_LEVEL)
    chosen: list[Compress] = []

    def compress(content: bytearray | memoryview) -> bytes:
        if chosen:
            return chosen[0](content)
        # The first frame decides for the file.
        frame, other = fast(content), before(content)
        larger = len(frame) > MOST_LARGER * len(other)
        chosen.append(before if larger else fast)
        return other if larger else frame

    return compress


@dataclass(frozen=True)
class Frames:
    """The frames of a tokens file. All hold `FRAME_BYTES` but the last, which may hold less."""

    bounds: list[int]
    """Where each begins in the file, and where the last one ends."""
    content_bytes: int
    """What they hold together."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def size(self, number: int) -> int:
        """Return the bytes of content that a frame holds."""
        return min(FRAME_BYTES, self.content_bytes - number * FRAME_BYTES)


def read_seek_table(file: StoredFile, *, size: int, content_bytes: int) -> Frames:
    """Read the frames of a tokens file from its seek table, with one read if the table is of a usual size.

    Args:
        file: the tokens file.
        size: its size in bytes.
        content_bytes: how many decompressed bytes the file must hold. A table of another length is refused before its
            entries are read, so that a false table costs neither time nor memory.

    Raises:
        CodecError: the table is absent, malformed, or does not add up to the file's size.
        OSError: the file cannot be read.
    """
    if size < _FOOTER.size:
        raise CodecError(f"{size} bytes; expected at least {_FOOTER.size} for a seek table")
    tail = file.read_range(max(0, size - TAIL_BYTES), size)
    count, descriptor, magic = _FOOTER.unpack(tail[-_FOOTER.size :])
    if magic != SEEKABLE_MAGIC:
        raise CodecError(f"no seek table at the end: expected magic {SEEKABLE_MAGIC:#x}, got {magic:#x}")
    if descriptor:
        raise CodecError(f"the seek table's descriptor is {descriptor:#04x}; expected 0")
    table_size = count * _ENTRY.size
    data_bytes = size - _FOOTER.size - table_size - _HEADER.size
    if data_bytes < 0:
        raise CodecError(f"declares {plural(count, 'frame')}, more than a file of {size} bytes can list")
    if count != (needed := -(-content_bytes // FRAME_BYTES)):
        raise CodecError(f"declares {plural(count, 'frame')}; expected {needed} for {content_bytes} bytes of tokens")
    if len(tail) < size - data_bytes:
        tail = file.read_range(data_bytes, size)
    skippable = tail[data_bytes - size :]
    header, table = _HEADER.unpack_from(skippable), skippable[_HEADER.size : -_FOOTER.size]
    expected = (SKIPPABLE_MAGIC, table_size + _FOOTER.size)
    if header != expected:
        raise CodecError(f"skippable frame header {header}; expected {expected}")
    frames = Frames([0], content_bytes)
    for number, (compressed, content) in enumerate(_ENTRY.iter_unpack(table)):
        if content != frames.size(number) or not 0 < compressed <= MAX_COMPRESSED_FRAME_BYTES:
            raise CodecError(
                f"frame {number} declares {compressed} bytes holding {content}; expected {frames.size(number)}, "
                f"compressed to at most {MAX_COMPRESSED_FRAME_BYTES}"
            )
        frames.bounds.append(frames.bounds[-1] + compressed)
    if frames.bounds[-1] != data_bytes:
        raise CodecError(f"frames add up to {frames.bounds[-1]} bytes, the file holds {data_bytes} before the table")
    return frames


def iter_frames(file: StoredFile, frames: Frames, numbers: range) -> Iterator[bytes]:
    """Decompress consecutive frames of a tokens file, given by their numbers; yield the content of each.

    Memory: one frame of content, and the compressed frames of one request (`request_bytes` of the store).

    Raises:
        CodecError: a frame fails its checksum or has the wrong number of bytes.
        OSError: the file cannot be read.
    """
    decompressor = zstandard.ZstdDecompressor()
    for number, data in iter_compressed(file, frames, numbers):
        yield decompress_frame(decompressor, data, frames, number)


def iter_compressed(file: StoredFile, frames: Frames, numbers: range) -> Iterator[tuple[int, memoryview]]:
    """Yield consecutive frames of a tokens file, compressed and not checked, with the number of each.

    Memory: one request's bytes.

    Raises:
        OSError: the file cannot be read.
    """
    for group in group_frames(frames, numbers, file.store.request_bytes):
        begin = frames.bounds[group.start]
        data = memoryview(file.read_range(begin, frames.bounds[group.stop]))
        for number in group:
            yield number, data[frames.bounds[number] - begin : frames.bounds[number + 1] - begin]


def group_frames(frames: Frames, numbers: range, request_bytes: int) -> Iterator[range]:
    """Yield groups of consecutive frames of a tokens file, one for each request: what fits, at least one."""
    first = numbers.start
    for number in numbers:
        if number > first and frames.bounds[number + 1] - frames.bounds[first] > request_bytes:
            yield range(first, number)
            first = number
    if first < numbers.stop:
        yield range(first, numbers.stop)


def read_content(file: StoredFile, frames: Frames, start: int, target: memoryview) -> None:
    """Decompress a tokens file's content from `start` on until a buffer is full. Only frames that hold it are read.

    Args:
        file: the tokens file.
        frames: all its frames, from `read_seek_table`.
        start: first content byte.
        target: a writable buffer of bytes, of a range inside the content.

    Raises:
        CodecError: a frame is corrupt.
    """
    stop = start + len(target)
    begin = start // FRAME_BYTES * FRAME_BYTES
    numbers = range(start // FRAME_BYTES, -(-stop // FRAME_BYTES) if len(target) else 0)
    for content in iter_frames(file, frames, numbers):
        first, last = max(start, begin), min(stop, begin + len(content))
        target[first - start : last - start] = memoryview(content)[first - begin : last - begin]
        begin += FRAME_BYTES


def decompress_frame(
    decompressor: zstandard.ZstdDecompressor, data: bytes | memoryview, frames: Frames, number: int
) -> bytes:
    """Decompress one frame of a tokens file and verify its checksum. Allocates no more than the seek table says.

    Raises:
        CodecError: it does not hold exactly what the seek table says.
    """
    size = frames.size(number)
    expected = f"expected {size} bytes by the seek table"
    try:
        # A false size in the frame's own header must not make us allocate.
        declared = zstandard.frame_content_size(data)
        if declared != size:
            raise CodecError(f"frame at byte {frames.bounds[number]} declares {declared} bytes; {expected}")
        if not zstandard.get_frame_parameters(data).has_checksum:
            raise CodecError(f"frame at byte {frames.bounds[number]} has no checksum; expected one")
        return decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        if lacks_memory(error):
            raise
        raise CodecError(f"frame at byte {frames.bounds[number]} does not decompress: {error}; {expected}") from error
