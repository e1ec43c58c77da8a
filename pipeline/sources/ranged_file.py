"""A file of which any range of bytes can be read, as a read-only file object for pyarrow."""

import io
from abc import abstractmethod
from typing import Any


class RangedFile(io.RawIOBase):
    """A file of known size that reads a range at a time."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size
        self._place = 0

    @abstractmethod
    def take(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop), of which there is one at least."""

    def read(self, size: int | None = -1) -> bytes:
        """Return `size` bytes from the position on, or all that are left if it is negative or None."""
        start = self._place
        self._place = self.size if size is None or size < 0 else min(self.size, start + size)
        return self.take(start, self._place) if self._place > start else b""

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer, and return how many they were."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position and return it."""
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size}[whence]
        return self._place

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
