"""A cache of fetched byte ranges: a folder of limited size, which several processes may use at once.

Each range is a file named by the digest of its address, version, first and last byte. It ends with a checksum: a range
that is truncated or altered counts as absent. When the folder is full, the least recently used ranges are deleted.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
from collections.abc import Generator
from pathlib import Path

import xxhash

from pipeline.sources.network.settings import network_settings
from shards.stores.files import unique_name

_keepers: list[object] = []

_CHECKSUM_BYTES = 16
_SLACK = 0.9
"""Eviction reduces the folder to this share of the limit, so that not every new range evicts another."""


class RangeCache:
    """A folder of fetched ranges with at most `limit_bytes`."""

    def __init__(self, folder: Path, limit_bytes: int):
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._unchecked_bytes = limit_bytes  # written since the folder was last measured: the first write measures
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> bytes | None:
        """Return a range, or None if it is absent or damaged."""
        path = self._path(key)
        try:
            data = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        content, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        return content if xxhash.xxh3_128_digest(content) == checksum else None

    def put(self, key: str, content: bytes) -> None:
        """Keep a range; one larger than the limit is not kept."""
        size = len(content) + _CHECKSUM_BYTES
        if size > self._limit_bytes:
            return
        self._unchecked_bytes += size
        if self._unchecked_bytes > self._limit_bytes * (1 - _SLACK):
            self._evict(size)
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_name(f".{path.name}.{unique_name()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.write(xxhash.xxh3_128_digest(content))
            temporary.replace(path)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise  # a full disk is not an error: the range is just not cached
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, key: str) -> None:
        """Delete a range."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / name[:2] / name[2:40]

    def _evict(self, room: int) -> None:
        files: list[tuple[int, int, Path]] = []
        for path in self._folder.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):  # another process evicts too
                status = path.stat()
                files.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in files) + room
        if total > self._limit_bytes:
            for _, size, path in sorted(files):
                path.unlink(missing_ok=True)
                total -= size
                if total <= self._limit_bytes * _SLACK:
                    break
        self._unchecked_bytes = 0


@contextlib.contextmanager
def keep_fetched() -> Generator[None]:
    """Cache the ranges that any thread fetches inside the block, because they will be read again."""
    keeper = object()
    _keepers.append(keeper)
    try:
        yield
    finally:
        _keepers.remove(keeper)


def is_kept() -> bool:
    """Return whether ranges that are fetched now go into the range cache."""
    return bool(_keepers) or network_settings().cache_all


def open_cache() -> RangeCache | None:
    """Return the cache of ranges in the folder that the settings name; None if they name none."""
    return _cache(network_settings().cache, network_settings().cache_bytes)


@functools.cache
def _cache(folder: str, limit_bytes: int) -> RangeCache | None:
    return RangeCache(Path(folder), limit_bytes) if folder else None
