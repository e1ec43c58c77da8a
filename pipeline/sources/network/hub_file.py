"""A file of a data set on the Hub, read by byte ranges that are fetched ahead; no other bytes are fetched.

`expect` announces the ranges in the order in which they will be read. Several connections fetch up to `AHEAD_BYTES` of
them ahead. Every response is checked: its length, its place, the file's size and entity tag. If the file has changed,
reading stops, so that versions never mix. Memory: `AHEAD_BYTES` and the group of ranges that is being read.
"""

# pyright: reportUnknownVariableType=false
from __future__ import annotations

import functools
import io
import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx2
from huggingface_hub import constants
from huggingface_hub.utils import build_hf_headers, get_session

from pipeline.sources.base import SourceError
from pipeline.sources.network.counted_retries import retry_counted
from pipeline.sources.network.hub_http import install_hub_http
from pipeline.sources.network.range_cache import is_kept, open_cache
from pipeline.sources.network.settings import network_settings
from shards.stores.retry import TransientError

AHEAD_BYTES = 64 << 20
_PIECE_BYTES = 8 << 20
"""Longer ranges are fetched in pieces, over several connections."""
_URL = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)@(?P<commit>[0-9a-f]{40})/(?P<path>.+)")

Range = tuple[int, int]
"""The first byte, and one past the last."""

_locations: dict[str, str] = {}
"""The Hub's last redirect for each file: the Hub limits the rate of its own requests, but not of their targets."""


class RangeFile(io.RawIOBase):
    """A file on the Hub at one commit, as a read-only file object for pyarrow."""

    def __init__(self, url: str, version: str):
        """Prepare to read a file; no request is sent yet.

        Args:
            url: `hf://datasets/OWNER/NAME@COMMIT/PATH`.
            version: `SIZE bytes, ETAG`.
        """
        super().__init__()
        match = _URL.fullmatch(url)
        assert match, url
        install_hub_http()
        path = quote(match["path"])
        self._address = f"{constants.ENDPOINT}/datasets/{match['repo']}/resolve/{match['commit']}/{path}"
        self._name = f"{match['repo']}/{match['path']}"
        self._key = f"{url} {version}"
        self._etag = version.rpartition(" ")[2]
        self.size = int(version.partition(" ")[0])
        self._place = 0
        self._groups: list[list[Range]] = []
        self._fetched: dict[Range, Future[bytes]] = {}
        self._next = 0  # the first group that is not being fetched yet
        self._keys: set[str] = set()

    def expect(self, groups: Sequence[Sequence[Range]]) -> None:
        """Announce the groups of ranges that will be read, in order. Reading a later group frees the earlier ones."""
        self._groups = [sorted(group) for group in groups]
        self._fetched = {}
        self._next = 0
        self._fetch_ahead(0)

    def _fetch_ahead(self, current: int) -> None:
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
        pieces = [(a, min(a + _PIECE_BYTES, stop)) for a in range(start, stop, _PIECE_BYTES)]
        if len(pieces) == 1:
            data = self._request(start, stop)
        else:  # in another pool: a thread that waits for others of its own pool could deadlock
            starts, stops = [a for a, _ in pieces], [b for _, b in pieces]
            with ThreadPoolExecutor(min(4, len(pieces))) as threads:
                data = b"".join(threads.map(self._request, starts, stops))
        if cache and is_kept():
            cache.put(key, data)
        return data

    def forget(self) -> None:
        """Delete this file's ranges from the cache, because they could not be decoded."""
        if cache := open_cache():
            for key in self._keys:
                cache.delete(key)

    def _request(self, start: int, stop: int) -> bytes:
        what = f"{self._name}: bytes {start} to {stop}"
        return retry_counted(what, lambda: self._attempt(what, start, stop))

    def _attempt(self, what: str, start: int, stop: int) -> bytes:
        wanted = {"range": f"bytes={start}-{stop - 1}", "accept-encoding": "identity"}
        location = _locations.get(self._address)
        if location is None:
            response = _get(what, self._address, headers=build_hf_headers() | wanted, follow_redirects=False)
            if response.is_error:
                message = response.headers.get("x-error-message") or response.reason_phrase
                raise SourceError(f"{what}: HTTP {response.status_code}: {message}. Was the repository removed?")
            self._check_version(response.headers)
            if not response.is_redirect:
                return self._check_body(what, start, stop, response)
            location = str(response.url.join(response.headers["location"]))
            _locations[self._address] = location
        response = _get(what, location, headers=wanted)  # the address is signed: do not send the token
        if response.status_code in (401, 403, 404, 410):
            _locations.pop(self._address, None)
            raise TransientError(f"the address that the Hub gave has expired (HTTP {response.status_code})")
        return self._check_body(what, start, stop, response)

    def _check_version(self, headers: httpx2.Headers) -> None:
        etag = headers.get("x-linked-etag") or headers.get("etag") or ""
        size = headers.get("x-linked-size")
        found = etag.removeprefix("W/").strip('"')
        if found != self._etag or (size is not None and int(size) != self.size):
            raise SourceError(
                f"{self._name}: the file has changed on the server; expected {self.size} bytes with tag {self._etag}, "
                f"got {size or 'unknown'} bytes with tag {found or 'none'}. Run again in a new work folder."
            )

    def _check_body(self, what: str, start: int, stop: int, response: httpx2.Response) -> bytes:
        found = response.headers.get("content-range", "none")
        expected = f"bytes {start}-{stop - 1}/{self.size}"
        if response.status_code != 206 or found != expected:
            raise SourceError(
                f"{what}: expected HTTP 206 with {expected!r}, got HTTP {response.status_code} with {found!r}. "
                "Either the file has changed, or a proxy between here and the Hub does not pass ranges on."
            )
        if len(response.content) != stop - start:
            raise TransientError(f"{len(response.content)} bytes; {stop - start} were requested")
        return response.content

    def read(self, size: int | None = -1) -> bytes:
        """Return `size` bytes from the current position, or all that are left if `size` is negative or None."""
        start = self._place
        stop = self.size if size is None or size < 0 else min(self.size, start + size)
        self._place = stop
        for index, group in enumerate(self._groups):
            for part in group:
                if part[0] <= start < part[1] and part in self._fetched:
                    self._fetch_ahead(index)
                    data = self._fetched[part].result()
                    if (start, stop) == part:
                        return data
                    rest = self.fetch(part[1], stop) if stop > part[1] else b""
                    return data[start - part[0] : stop - part[0]] + rest
        return self.fetch(start, stop) if stop > start else b""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        """Return the position."""
        return self._place

    def readable(self) -> bool:
        """Return True: the file can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: the file can be read at any position."""
        return True

    def close(self) -> None:
        """Cancel and free the ranges that were fetched ahead."""
        for future in self._fetched.values():
            future.cancel()
        self._fetched = {}
        super().close()


def _get(what: str, url: str, **options: Any) -> httpx2.Response:
    try:
        return get_session().get(url, **options)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise SourceError(f"{what}: {type(error).__name__}: {error}. Is HF_ENDPOINT right?") from error


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(network_settings().connections, thread_name_prefix="fetch")
