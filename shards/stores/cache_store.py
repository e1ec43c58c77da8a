"""A store that reads a remote set through a cache: listed files are fetched whole, verified, and kept on this machine.

The first read of a file fetches it, with several ranged requests at once, which the store retries. Reads are then as
fast as from a folder. The manifest is read once and kept in memory, so that it cannot change between two
reads.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from threading import Event

from shards.errors import InputError
from shards.stores.cache import Cache
from shards.stores.retry import stop_on
from shards.stores.store import FolderStore, ListedFile, Store, StoredFile
from shards.terminal.reporter import Progress, count_up, no_progress

CONNECTIONS = 4
"""Ranged requests of a file at once: one connection seldom uses the full bandwidth. Each holds one range in memory."""


class CacheStore:
    """A remote set's files, kept by a cache. Files that the set does not list are read from the remote store."""

    folder = None
    request_bytes = 0

    def __init__(
        self,
        remote: Store,
        cache: Cache,
        *,
        set_id: str,
        files: Mapping[str, tuple[int, str]],
        metadata: Mapping[str, bytes],
    ):
        """Read a remote set through a cache; nothing is fetched yet.

        Args:
            remote: the store that has the set.
            cache: keeps the files.
            set_id: the set's identity: the SHA-256 of its manifest.
            files: size in bytes and SHA-256 of each file, by name.
            metadata: small files that were fetched and stay in memory, by name.

        Raises:
            InputError: the cache's limit is smaller than the two largest files: one is read while the next is fetched.
        """
        self.remote, self.cache, self.set_id, self.files, self.metadata = remote, cache, set_id, files, metadata
        self._fetches: set[Event] = set()
        self._lock = threading.Lock()
        needed = sum(sorted(size for size, _ in files.values())[-2:])
        if needed > cache.limit:
            raise InputError(
                f"{cache.folder}: the cache's limit is {cache.limit:,} bytes, less than two shards of {remote}; "
                f"expected at least {needed:,} bytes. Raise --cache-limit, or choose a larger disk with --cache."
            )

    def __reduce__(self) -> tuple[Callable[..., CacheStore], tuple[Store, Cache]]:
        again = partial(CacheStore, set_id=self.set_id, files=self.files, metadata=self.metadata)
        return again, (self.remote, self.cache)

    def list(self) -> Iterator[ListedFile]:
        return self.remote.list()

    def size(self, name: str) -> int:
        if name in self.metadata:
            return len(self.metadata[name])
        return self.files[name][0] if name in self.files else self.remote.size(name)

    def read(self, name: str) -> bytes:
        return self.read_range(name, 0, self.size(name))

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file; the whole file is fetched first. Raises what `hold` raises."""
        if name in self.metadata:
            return self.metadata[name][start:stop]
        if name not in self.files:
            return self.remote.read_range(name, start, stop)
        with self.hold(name) as file:
            return file.read_range(start, stop)

    @contextlib.contextmanager
    def hold(self, name: str, *, progress: Progress = no_progress) -> Generator[StoredFile]:
        """Yield a listed file of a remote set as the cache keeps it, to be read while the body runs.

        Args:
            name: the file.
            progress: called as the file is fetched, if this process fetches it.

        Raises:
            ShardSetError: the file's bytes, fetched twice, are not what the manifest says.
            StoreError: the file cannot be fetched.
            InputError: `stop_fetching` was called meanwhile.
            OSError: the cache's folder cannot be read or written to, or its disk is full.
        """
        size, sha256 = self.files[name]
        path, stop = self.cache.folder / self.set_id / sha256, Event()
        # `stop_fetching` finds the fetches of all threads here.
        with self._lock:
            self._fetches.add(stop)
        try:
            fetch = partial(self._fetch, name, size, stop, progress)
            with self.cache.hold(path, name, size, fetch, stop=stop) as readable:
                yield StoredFile(FolderStore(readable.parent), readable.name)
        finally:
            with self._lock:
                self._fetches.discard(stop)

    def stop_fetching(self) -> None:
        """End the fetches and waits of all threads that read a set through the cache; later reads fetch again."""
        with self._lock:
            for stop in self._fetches:
                stop.set()

    def _fetch(self, name: str, size: int, stop: Event, progress: Progress, descriptor: int) -> None:
        """Write the bytes of a remote set's file to a descriptor, for the cache."""
        step = self.remote.request_bytes

        def fetch_range(start: int) -> int:
            with stop_on(stop):
                content = memoryview(self.remote.read_range(name, start, min(start + step, size)))
            written = 0
            while written < len(content):  # one write takes at most 2 GiB
                written += os.pwrite(descriptor, content[written:], start + written)
            return written

        # If one range fails, the others stop at their next request, and those that wait are not begun.
        advance = count_up(progress, size)
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="fetch") as pool:
            futures = [pool.submit(fetch_range, start) for start in range(0, size, step)]
            try:
                for future in as_completed(futures):
                    advance(future.result())
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def __str__(self) -> str:
        return str(self.remote)
