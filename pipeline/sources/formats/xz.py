"""xz: a stream of the decompressed bytes of a file of one or more xz streams, in bounded memory.

Python's `LZMAFile` ignores damaged bytes after a stream, so that the rest of a file would be lost in silence; this
reader refuses them.
"""

from __future__ import annotations

import io
import lzma
from typing import Any, BinaryIO, cast

MEMORY_BYTES = 256 << 20
"""The most memory that a file may ask of its reader: `xz -9` asks for 65 MiB."""
_INPUT_BYTES = 1 << 18


def open_xz(raw: BinaryIO) -> BinaryIO:
    """Return a stream of a file's bytes, decompressed.

    Reading raises OSError if the file is truncated or broken, or asks for more than `MEMORY_BYTES`.
    """
    return cast("BinaryIO", io.BufferedReader(_XzReader(raw), _INPUT_BYTES))


class _XzReader(io.RawIOBase):
    def __init__(self, raw: BinaryIO):
        self._raw = raw
        self._decoder = _new_decoder()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        while True:
            data = b""
            # After a stream comes another one, padding, or the end; anything else is damage.
            if self._decoder.eof:
                if not (data := self._find_next_stream()):
                    return 0
                self._decoder = _new_decoder()
            elif self._decoder.needs_input and not (data := self._raw.read(_INPUT_BYTES)):
                raise OSError("Truncated compressed stream")
            try:
                block = self._decoder.decompress(data, len(view))
            except lzma.LZMAError as error:
                raise OSError(f"xz decompress failed: {error} (at most {MEMORY_BYTES >> 20} MiB are used)") from error
            if block:
                view[: len(block)] = block
                return len(block)

    def _find_next_stream(self) -> bytes:
        """Return the first bytes after a stream and its padding, which is of zeros; empty at the end of the file."""
        data = self._decoder.unused_data.lstrip(b"\0")
        while not data and (more := self._raw.read(_INPUT_BYTES)):
            data = more.lstrip(b"\0")
        return data


def _new_decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY_BYTES)
