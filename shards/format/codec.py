"""The tokens file: the Zstandard seekable format, written frame by frame and read back by range.

A file is a row of independent zstd frames, each holding `FRAME_BYTES` of tokens (the last may hold less) with its
content checksum, and one skippable frame with the seek table. Any zstd tool decompresses it to the plain token array.
Memory: one frame while writing, the requested range while reading. Sizes that a file declares are checked against the
file's real size before anything is allocated.

Source: the Zstandard seekable format, version 0.1.0 (contrib/seekable_format in the zstd project).
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import xxhash
import zstandard

from shards.errors import plural
from shards.format.zstd_parameters import Compression, FrameCompressor

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
_CHECKSUM_FLAG = 0x80
_RESERVED_BITS = 0x7C


class CodecError(ValueError):
    """A tokens file that breaks the format. `kind` is `seek_table` or `frame_corrupt`."""

    def __init__(self, kind: str, message: str):
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return self.message


class SeekableWriter:
    """Compress a stream of bytes into seekable zstd frames.

    Deterministic: the bytes written depend on the bytes given, the compression and the zstd version, not on how the
    input is cut into `write` calls. After `close`, `bytes_written`, `sha256` (of the file), `content_sha256` (of the
    input) and `checksums` are final. The file object is neither closed nor synced.
    """

    def __init__(self, file: BinaryIO, *, compression: Compression = "balanced", token_bytes: int = 2):
        self._file = file
        self._compressor = FrameCompressor(compression, token_bytes=token_bytes)
        self._pending = bytearray()
        self._entries: list[tuple[int, int]] = []
        self._file_hash = hashlib.sha256()
        self._content_hash = hashlib.sha256()
        self._file_xxh3 = xxhash.xxh3_128()
        self._content_xxh3 = xxhash.xxh3_128()
        self.bytes_written = 0

    def write(self, data: Buffer) -> None:
        """Append bytes. Whole frames are compressed and written at once; the rest waits for the next call."""
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
        entries = b"".join(_ENTRY.pack(*entry) for entry in self._entries)
        footer = _FOOTER.pack(len(self._entries), 0, SEEKABLE_MAGIC)
        self._write_raw(_HEADER.pack(SKIPPABLE_MAGIC, len(entries) + len(footer)) + entries + footer)

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the bytes written to the file."""
        return self._file_hash.hexdigest()

    @property
    def content_sha256(self) -> str:
        """Hex SHA-256 of the uncompressed bytes."""
        return self._content_hash.hexdigest()

    @property
    def checksums(self) -> dict[str, str]:
        """By SHA-256 the XXH3-128 of the same bytes, of the file and of the input; both in hex."""
        return {self.sha256: self._file_xxh3.hexdigest(), self.content_sha256: self._content_xxh3.hexdigest()}

    def _write_frame(self, content: bytearray | memoryview) -> None:
        self._content_hash.update(content)
        self._content_xxh3.update(content)
        frame = self._compressor.compress(content)
        self._entries.append((len(frame), len(memoryview(content))))
        self._write_raw(frame)

    def _write_raw(self, data: bytes) -> None:
        self._file_hash.update(data)
        self._file_xxh3.update(data)
        self._file.write(data)
        self.bytes_written += len(data)


@dataclass(frozen=True, slots=True)
class Frame:
    """The place of one frame: half-open byte ranges in the file and in the decompressed content."""

    file_start: int
    file_stop: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SeekTable:
    """The frames of a tokens file, in order."""

    frames: tuple[Frame, ...]

    @property
    def content_bytes(self) -> int:
        """Decompressed size of the whole file."""
        return self.frames[-1].stop if self.frames else 0

    def touching(self, start: int, stop: int) -> tuple[Frame, ...]:
        """Return the frames that hold any of the content bytes [start, stop)."""
        if start >= stop:
            return ()
        # Every frame but the last holds FRAME_BYTES (checked when the table was read).
        return self.frames[start // FRAME_BYTES : (stop - 1) // FRAME_BYTES + 1]


def read_seek_table(file: StoredFile, *, size: int | None = None, content_bytes: int | None = None) -> SeekTable:
    """Read and check the seek table of a tokens file, with one read if the table is of a usual size.

    Args:
        file: the tokens file.
        size: its size in bytes, if the caller knows; asked from the store when None.
        content_bytes: how many decompressed bytes the file must hold, if the caller knows. A table of another length is
            refused before its entries are read, so that a false table costs neither time nor memory.

    Raises:
        CodecError: kind `seek_table`, when the table is absent, malformed, or does not add up to the file's size.
        OSError: the file cannot be read.
    """
    size = file.size() if size is None else size
    if size < _FOOTER.size:
        raise CodecError("seek_table", f"{size} bytes; expected at least {_FOOTER.size} for a seek table")
    tail = file.read_range(max(0, size - TAIL_BYTES), size)
    count, descriptor, magic = _FOOTER.unpack(tail[-_FOOTER.size :])
    if magic != SEEKABLE_MAGIC:
        raise CodecError("seek_table", f"no seek table at the end: expected magic {SEEKABLE_MAGIC:#x}, got {magic:#x}")
    if descriptor & _RESERVED_BITS:
        raise CodecError("seek_table", f"reserved bits set in the seek table's descriptor ({descriptor:#04x})")
    entry_size = _ENTRY.size + (4 if descriptor & _CHECKSUM_FLAG else 0)
    table_size = count * entry_size
    data_bytes = size - _FOOTER.size - table_size - _HEADER.size
    if data_bytes < 0:
        raise CodecError("seek_table", f"declares {plural(count, 'frame')}, more than a file of {size} bytes can list")
    if content_bytes is not None and count != -(-content_bytes // FRAME_BYTES):
        expected_count = -(-content_bytes // FRAME_BYTES)
        message = f"declares {plural(count, 'frame')}; expected {expected_count} for {content_bytes} bytes of tokens"
        raise CodecError("seek_table", message)
    if len(tail) < size - data_bytes:
        tail = file.read_range(data_bytes, size)
    skippable = tail[len(tail) - (size - data_bytes) :]
    header, table = _HEADER.unpack_from(skippable), skippable[_HEADER.size : -_FOOTER.size]
    expected = (SKIPPABLE_MAGIC, table_size + _FOOTER.size)
    if header != expected:
        raise CodecError("seek_table", f"skippable frame header {header}; expected {expected}")
    seek_table = SeekTable(_parse_entries(table, count, entry_size, data_bytes=data_bytes))
    if content_bytes is not None and seek_table.content_bytes != content_bytes:
        raise CodecError("seek_table", f"holds {seek_table.content_bytes} bytes of tokens; expected {content_bytes}")
    return seek_table


def _parse_entries(table: bytes, count: int, entry_size: int, *, data_bytes: int) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    file_start = start = 0
    for index in range(count):
        compressed, content = _ENTRY.unpack_from(table, index * entry_size)
        full = content == FRAME_BYTES or (index == count - 1 and 0 < content < FRAME_BYTES)
        if not full or not 0 < compressed <= MAX_COMPRESSED_FRAME_BYTES:
            raise CodecError(
                "seek_table",
                f"frame {index} declares {compressed} bytes holding {content}; expected {FRAME_BYTES} in every frame "
                f"but the last, which may hold less, compressed to at most {MAX_COMPRESSED_FRAME_BYTES}",
            )
        frames.append(Frame(file_start, file_start + compressed, start, start + content))
        file_start += compressed
        start += content
    if file_start != data_bytes:
        raise CodecError(
            "seek_table", f"frames add up to {file_start} bytes, the file holds {data_bytes} before the table"
        )
    return tuple(frames)


def iter_frames(file: StoredFile, frames: tuple[Frame, ...]) -> Iterator[bytes]:
    """Decompress consecutive frames of a shard's file; yield the content of each.

    Memory: one frame of content, and the compressed frames of one request (`request_bytes` of the store).

    Raises:
        CodecError: kind `frame_corrupt`, when a frame fails its checksum or has the wrong number of bytes.
        OSError: the file cannot be read.
    """
    decompressor = zstandard.ZstdDecompressor()
    for frame, data in iter_compressed(file, frames):
        yield decompress_frame(decompressor, data, frame)


def iter_compressed(file: StoredFile, frames: tuple[Frame, ...]) -> Iterator[tuple[Frame, memoryview]]:
    """Yield consecutive frames with their compressed bytes, which are not checked. Memory: one request's bytes.

    Raises:
        OSError: the file cannot be read.
    """
    for group in group_frames(frames, file.store.request_bytes):
        first = group[0].file_start
        data = memoryview(file.read_range(first, group[-1].file_stop))
        for frame in group:
            yield frame, data[frame.file_start - first : frame.file_stop - first]


def group_frames(frames: tuple[Frame, ...], request_bytes: int) -> Iterator[tuple[Frame, ...]]:
    """Yield groups of consecutive frames, one for each request: as many as fit in `request_bytes`, at least one."""
    first = 0
    for index, frame in enumerate(frames):
        if index > first and frame.file_stop - frames[first].file_start > request_bytes:
            yield frames[first:index]
            first = index
    if first < len(frames):
        yield frames[first:]


def read_into(file: StoredFile, table: SeekTable, start: int, target: memoryview, *, threads: int = 1) -> None:
    """Decompress the content bytes from `start` on until a buffer is full. Only the frames that contain them are read.

    Args:
        file: the tokens file.
        table: its seek table, from `read_seek_table`.
        start: first content byte.
        target: a writable buffer of bytes. Frames that are whole in the range are decompressed there, without a copy.
        threads: number of threads that decompress frames. The result does not depend on it.

    Raises:
        ValueError: the range lies outside the content.
        CodecError: kind `frame_corrupt`.
    """
    stop = start + len(target)
    if not 0 <= start <= stop <= table.content_bytes:
        raise ValueError(f"{file.name}: bytes [{start}, {stop}) lie outside [0, {table.content_bytes})")
    frames = table.touching(start, stop)

    def fill(part: tuple[Frame, ...]) -> None:
        decompressor = zstandard.ZstdDecompressor()
        for frame, data in iter_compressed(file, part):
            first, last = max(start, frame.start), min(stop, frame.stop)
            place = target[first - start : last - start]
            if (first, last) == (frame.start, frame.stop):
                decompress_into(decompressor, data, frame, place)
            else:
                content = decompress_frame(decompressor, data, frame)
                place[:] = memoryview(content)[first - frame.start : last - frame.start]

    if threads <= 1 or len(frames) < 2:
        fill(frames)
    else:
        step = -(-len(frames) // threads)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, (frames[i : i + step] for i in range(0, len(frames), step))))


def decompress_frame(decompressor: zstandard.ZstdDecompressor, data: bytes | memoryview, frame: Frame) -> bytes:
    """Decompress one frame of a tokens file and verify its checksum. Allocates no more than the seek table says.

    Raises:
        CodecError: kind `frame_corrupt`, when it does not hold exactly what the seek table says.
    """
    with _frame_errors(data, frame):
        content = decompressor.decompress(data, allow_extra_data=False)
    _check_bytes(len(content), frame)
    return content


def decompress_into(
    decompressor: zstandard.ZstdDecompressor, data: bytes | memoryview, frame: Frame, target: memoryview
) -> None:
    """Decompress one frame of a tokens file into a buffer of its size, and verify its checksum; nothing is allocated.

    Raises:
        CodecError: kind `frame_corrupt`, if the frame does not hold exactly what the seek table says.
    """
    with _frame_errors(data, frame):
        # zstd decompresses in one pass, checksum included, only if it has the whole frame and room for its content.
        if (found := _count_frame_bytes(data)) != len(data):
            ends = f"ends after {found} bytes" if found and found < len(data) else "is cut off"
            message = f"frame at byte {frame.file_start} {ends}; expected {len(data)} bytes by the seek table"
            raise CodecError("frame_corrupt", message)
        count = decompressor.stream_reader(data).readinto(target)  # pyright: ignore[reportUnknownMemberType]
    _check_bytes(count, frame)


def _count_frame_bytes(data: bytes | memoryview) -> int | None:
    """Return the compressed size of the frame that data begins with, by its blocks; None if the last is not there.

    Source: RFC 8878, sections 3.1.1 and 3.1.1.2.
    """
    at = zstandard.frame_header_size(data)
    while at + 3 <= len(data):
        header = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == 1 else size)  # kind 1: one byte, repeated
        if last:
            return at + 4 * zstandard.get_frame_parameters(data).has_checksum
    return None


@contextlib.contextmanager
def _frame_errors(data: bytes | memoryview, frame: Frame) -> Generator[None]:
    """Check the size in a frame's header, so that a false size cannot make us allocate; name what fails in the body."""
    try:
        declared, expected = zstandard.frame_content_size(data), frame.stop - frame.start
        if declared != expected:
            raise CodecError(
                "frame_corrupt",
                f"frame at byte {frame.file_start} declares {declared} bytes; expected {expected} by the seek table",
            )
        yield
    except zstandard.ZstdError as error:
        found = f"frame at byte {frame.file_start} does not decompress: {error}"
        expected = f"expected {frame.stop - frame.start} bytes by the seek table"
        raise CodecError("frame_corrupt", f"{found}; {expected}") from error


def _check_bytes(found: int, frame: Frame) -> None:
    expected = frame.stop - frame.start
    if found != expected:
        message = f"frame at byte {frame.file_start} holds {found} bytes; expected {expected} by the seek table"
        raise CodecError("frame_corrupt", message)
