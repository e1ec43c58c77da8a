"""Software Heritage's archive: files by the SHA-1 of their bytes, fetched by many connections, each one checked.

An object is `ENDPOINT/SHA1`, a gzip, read without an account; it counts when what it holds has that SHA-1. A failure
that may pass is tried again by `network.retry`; a body that is not what it should be a few times, by a connection of
its own. Threads and the standard library's client do this at 4,800 files of 4 KB a second from a loopback server on the
same two cores; urllib3 2,800, httpx2 1,600, aiohttp 4,700, obstore 4,800 (measured). A network gives hundreds.

Memory: `_SMALL_BYTES` a connection, and one larger body at a time.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import queue
import random
import re
import ssl
import threading
import time
import urllib.request
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from pipeline.sources.base import SourceError
from pipeline.sources.network import Network, TransientError, network, retry

if TYPE_CHECKING:
    from pipeline.recipe import SourceRecipe

MISSING = "content missing"
DIFFERS = "content differs from its SHA-1"
NOT_GZIP = "content not gzip"
TOO_LARGE = "content too large"
NOT_UTF8 = "content not UTF-8"
NOT_SHA1 = "blob_id not a SHA-1"

MAX_BYTES = 64 << 20
"""A larger file is not taken; most in the archive have a few KB."""
_SMALL_BYTES = 1 << 20
_TRIES = 3
"""How often a body is asked for that is not what its key says: a proxy may have cut it."""
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_SHA1 = re.compile(rb"[0-9a-fA-F]{40}")
_S3_CODE = re.compile(rb"<Code>(\w+)</Code>")

Outcome = bytes | str
"""The gzip bytes of an object, or the reason why it cannot be had."""


def parse_key(value: bytes | None) -> bytes | None:
    """Return the 20 bytes of a SHA-1 in hexadecimal, or None where it is not one."""
    return bytes.fromhex(value.decode()) if value is not None and _SHA1.fullmatch(value) else None


def decode(data: bytes, fallback_encoding: str | None) -> bytes | None:
    """Return a file's text in UTF-8, or None where it is neither UTF-8 nor, if one is given, in the other encoding."""
    try:
        data.decode()
    except UnicodeDecodeError:
        if fallback_encoding is None:
            return None
    else:
        return data
    try:
        return data.decode(fallback_encoding).encode()
    except UnicodeError:
        return None


def read_back(source: SourceRecipe, ids: list[bytes | None]) -> list[bytes | None]:
    """Fetch documents once more, for validation.

    Returns:
        Their text in UTF-8, in the order of `ids`; None where it cannot be had.

    Raises:
        SourceError: the archive cannot be read.
    """
    keys = [parse_key(value) for value in ids]
    texts: dict[bytes | None, bytes | None] = {}
    for key, outcome in fetch_all({key for key in keys if key is not None}):
        texts[key] = decode(gzip.decompress(outcome), source.fallback_encoding) if isinstance(outcome, bytes) else None
    return [texts.get(key) for key in keys]


def fetch_all(keys: Iterable[bytes]) -> Iterator[tuple[bytes, Outcome]]:
    """Fetch objects by several connections; yield each key with its outcome, as they come.

    Raises:
        SourceError: the archive cannot be read, or not within the settings' bound.
    """
    settings = network()
    endpoint = resolve_endpoint(settings.content_endpoint)
    context = ssl.create_default_context() if endpoint.scheme == "https" else None
    pending, lock, stop = iter(keys), threading.Lock(), threading.Event()
    results: queue.SimpleQueue[tuple[bytes, Outcome] | BaseException | None] = queue.SimpleQueue()
    slots = threading.Semaphore(2 * settings.content_connections)  # in flight, or fetched and not yet taken

    def work() -> None:
        client = _Client(endpoint, settings, context, stop)
        try:
            while True:
                slots.acquire()
                with lock:
                    key = None if stop.is_set() else next(pending, None)
                if key is None:
                    break
                results.put((key, client.fetch(key)))
            results.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever takes the results
            results.put(error)
        finally:
            slots.release()
            client.close()

    threads = [threading.Thread(target=work, daemon=True, name="fetch") for _ in range(settings.content_connections)]
    for thread in threads:
        thread.start()
    try:
        left = len(threads)
        while left:
            result = results.get()
            if result is None:
                left -= 1
            elif isinstance(result, BaseException):
                raise result
            else:
                yield result
                slots.release()
    finally:
        stop.set()
        for _ in threads:
            slots.release()


def resolve_endpoint(text: str) -> SplitResult:
    """Return the address of an archive: `s3://bucket/prefix` by HTTPS, or where AWS_ENDPOINT_URL says.

    Raises:
        SourceError: it is no such address.
    """
    url = urlsplit(text.rstrip("/"))
    if url.scheme == "s3":
        other = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if other:
            url = urlsplit(f"{other.rstrip('/')}/{url.netloc}{url.path}")
        elif "." in url.netloc:  # the certificate is for one label before the service's name
            url = urlsplit(f"https://s3.amazonaws.com/{url.netloc}{url.path}")
        else:
            url = urlsplit(f"https://{url.netloc}.s3.amazonaws.com{url.path}")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise SourceError(
            f"content endpoint {text!r}: expected https://HOST/PATH or s3://BUCKET/PREFIX. Correct --content-endpoint."
        )
    return url


def verify(key: bytes, body: bytes) -> str | None:
    """Return what is wrong with an object, or None."""
    hashing = hashlib.sha1(usedforsecurity=False)
    left = MAX_BYTES
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            while piece := file.read(_SMALL_BYTES):
                left -= len(piece)
                if left < 0:
                    return TOO_LARGE
                hashing.update(piece)
    except (OSError, EOFError, zlib.error):
        return NOT_GZIP
    return None if hashing.digest() == key else DIFFERS


class _StoppedError(Exception):
    """Another connection failed for good, or nobody wants the rest."""


class _TooLargeError(Exception):
    """A body is larger than `MAX_BYTES`."""


_large = threading.Lock()


class _Client:
    """One connection, opened again whenever it failed."""

    def __init__(
        self, endpoint: SplitResult, settings: Network, context: ssl.SSLContext | None, stop: threading.Event
    ):
        self._endpoint, self._settings, self._context, self._stop = endpoint, settings, context, stop
        self._connection: http.client.HTTPConnection | None = None
        self._origin, self._headers = "", {"User-Agent": "tokenmill"}

    def fetch(self, key: bytes) -> Outcome:
        """Return an object's gzip bytes, or the reason why it cannot be had.

        Raises:
            SourceError: the archive cannot be read, or not in time.
        """
        path = f"{self._endpoint.path}/{key.hex()}"
        what = f"{self._endpoint.scheme}://{self._endpoint.netloc}{path}"
        fault = DIFFERS
        for attempt in range(_TRIES):
            if attempt:
                self.close()
                time.sleep(random.uniform(0, attempt))
            try:
                body = retry(what, lambda: self._get(what, path), give_up_s=self._settings.give_up_s)
            except _TooLargeError:
                return TOO_LARGE
            if body is None:
                return MISSING
            found = verify(key, body)
            if found is None:
                return body
            if found == NOT_GZIP and hashlib.sha1(body, usedforsecurity=False).digest() == key:
                return gzip.compress(body, 1)  # a mirror, or a proxy, that has unpacked it
            if found == TOO_LARGE:
                return found
            fault = found
        return fault

    def _get(self, what: str, path: str) -> bytes | None:
        """Ask once. Return the body, or None where there is no such object."""
        if self._stop.is_set():
            raise _StoppedError
        try:
            connection = self._open()
            connection.request("GET", self._origin + path, headers=self._headers)
            response = connection.getresponse()
            body = self._read(response)
        except ssl.SSLCertVerificationError as error:
            raise SourceError(f"{what}: {error}. Correct --content-endpoint, or install its certificate.") from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise TransientError(f"{type(error).__name__}: {error}") from error
        except (TransientError, _TooLargeError):
            self.close()
            raise
        if response.status == 200:
            return body
        if response.status in _TRANSIENT:
            wait = _seconds_to_wait(response.headers.get("Retry-After", ""))
            raise TransientError(f"HTTP {response.status} {response.reason}", retry_after_s=wait)
        code = _S3_CODE.search(body)
        found = code[1].decode() if code else ""
        # S3 refuses to tell whether a key exists in a bucket that may not be listed: then missing is AccessDenied.
        if found == "NoSuchKey" or (response.status, found) in ((404, ""), (410, ""), (403, "AccessDenied")):
            return None
        where = response.headers.get("Location") or response.headers.get("x-amz-bucket-region")
        told = f" {found or response.reason}{f' ({where})' if where else ''}"
        raise SourceError(f"{what}: HTTP {response.status}{told}. Correct --content-endpoint.")

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        announced = response.length
        if announced is not None and announced > MAX_BYTES:
            raise _TooLargeError
        body = response.read(_SMALL_BYTES)
        if len(body) == _SMALL_BYTES and not response.isclosed():
            with _large:
                body += response.read(MAX_BYTES + 1 - len(body))
            if len(body) > MAX_BYTES:
                raise _TooLargeError
        if announced is not None and len(body) != announced:
            raise TransientError(f"a body of {len(body)} bytes where {announced} were announced")
        return body

    def _open(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> http.client.HTTPConnection:
        """Make a connection, by the proxy that the environment names, if it does."""
        url, proxy = self._endpoint, _proxy_of(self._endpoint)
        host, port = url.hostname or "", url.port
        via, via_port = (proxy.hostname or "", proxy.port or 80) if proxy else (host, port)
        headers = _authorization(proxy)
        if url.scheme == "http":
            if proxy:
                self._origin = f"http://{url.netloc}"
                self._headers = self._headers | headers
            return http.client.HTTPConnection(via, via_port, timeout=self._settings.timeout_s)
        connection = http.client.HTTPSConnection(
            via, via_port, timeout=self._settings.timeout_s, context=self._context
        )
        if proxy:
            connection.set_tunnel(host, port or 443, headers)
        return connection

    def close(self) -> None:
        """Close the connection; the next request opens one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _proxy_of(url: SplitResult) -> SplitResult | None:
    address = urllib.request.getproxies().get(url.scheme)
    if not address or urllib.request.proxy_bypass(url.hostname or ""):
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


def _authorization(proxy: SplitResult | None) -> dict[str, str]:
    if proxy is None or proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _seconds_to_wait(retry_after: str) -> float | None:
    """Return what a Retry-After header asks for: seconds, or a date."""
    if retry_after.strip().isdigit():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None
