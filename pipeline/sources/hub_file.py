"""A file of a data set on the Hub, read by byte ranges that are fetched ahead; no other bytes are fetched.

`expect` announces the ranges in the order in which they will be read. Several connections fetch up to `AHEAD_BYTES` of
them ahead, through `shards.stores.hub_store`, which checks every answer: if the file has changed, reading stops, so
that versions never mix. Memory: `AHEAD_BYTES` and the group of ranges that is being read.
"""

import functools
import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from pipeline.sources.base import SourceError
from pipeline.sources.network import is_kept, network_settings, open_cache
from pipeline.sources.ranged_file import RangedFile
from shards.stores.hub_client import limit_hub_requests
from shards.stores.hub_store import HubAddress, HubStore
from shards.stores.retry import StoreError
from shards.stores.store import ListedFile

AHEAD_BYTES = 64 << 20
_URL = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)@(?P<commit>[0-9a-f]{40})/(?P<path>.+)")

Range = tuple[int, int]
"""The first byte, and one past the last."""


class RangeFile(RangedFile):
    """A file on the Hub at one commit."""

    def __init__(self, url: str, version: str):
        """Prepare to read a file on the Hub; no request is sent yet.

        Args:
            url: `hf://datasets/OWNER/NAME@COMMIT/PATH`.
            version: `SIZE bytes, ETAG`.
        """
        match = _URL.fullmatch(url)
        assert match, url
        size, _, etag = version.partition(" bytes, ")
        super().__init__(int(size))
        file = ListedFile(match["path"], self.size, etag)
        settings = network_settings()
        limit_hub_requests(settings.give_up_s, wait_s=settings.timeout_s)
        self._store = HubStore(HubAddress(match["repo"]), match["commit"], {match["path"]: file})
        self._name = match["path"]
        self._key = f"{url} {version}"
        self._groups: list[list[Range]] = []
        self._fetched: dict[Range, Future[bytes]] = {}
        self._next = 0  # the first group that is not being fetched yet
        self._keys: set[str] = set()

    def expect(self, groups: Sequence[Sequence[Range]]) -> None:
        """Announce the ranges to be read, in groups. Reading a later group frees the earlier ones."""
        self._groups = [sorted(group) for group in groups]
        self._fetched = {}
        self._next = 0
        self._fetch_ahead(0)

    def _fetch_ahead(self, current: int) -> None:
        # Free what was read, and begin what comes next while there is room.
        for group in self._groups[:current]:
            for part in group:
                self._fetched.pop(part, None)
        pending = sum(stop - start for start, stop in self._fetched)
        while self._next < len(self._groups) and (self._next <= current or pending < AHEAD_BYTES):
            for part in self._groups[self._next]:
                self._fetched[part] = _pool().submit(self.fetch, *part)
                pending += part[1] - part[0]
            self._next += 1

    def fetch(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop), from the cache or the network.

        Raises:
            SourceError: the bytes cannot be fetched, or the file has changed.
        """
        cache = open_cache()
        key = f"{self._key} {start}-{stop}"
        self._keys.add(key)
        if cache and (data := cache.get(key)) is not None:
            return data
        try:
            data = self._store.read_range(self._name, start, stop)
        except StoreError as error:
            raise SourceError(str(error)) from error
        if cache and is_kept():
            cache.put(key, data)
        return data

    def forget(self) -> None:
        """Delete the file's ranges from the cache, because they could not be decoded."""
        if cache := open_cache():
            for key in self._keys:
                cache.delete(key)

    def take(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop), from what was fetched ahead if they are announced."""
        # pyarrow reads what was announced, in that order, or the beginning of it.
        for index, group in enumerate(self._groups):
            for part in group:
                if part[0] <= start and stop <= part[1] and part in self._fetched:
                    self._fetch_ahead(index)
                    return self._fetched[part].result()[start - part[0] : stop - part[0]]
        return self.fetch(start, stop)

    def close(self) -> None:
        """Cancel and free the ranges that were fetched ahead."""
        for future in self._fetched.values():
            future.cancel()
        self._fetched = {}
        super().close()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(network_settings().connections, thread_name_prefix="fetch")
