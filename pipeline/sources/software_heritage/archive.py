"""Software Heritage's archive: fetch files by the SHA-1 of their bytes over many connections, and check each one.

An object is `ENDPOINT/SHA1`, a gzip of the file with that SHA-1, read through obstore without an account. Failures that
may pass are retried by `shards.stores.retry`. If a body has another SHA-1, it is fetched a few times more.

Memory: `_SMALL_BYTES` per connection, and one larger object at a time.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import functools
import gzip
import hashlib
import io
import queue
import random
import re
import threading
import time
import zlib
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pipeline.sources.base import SourceError
from pipeline.sources.network import network_settings
from shards.stores.object_client import CONNECT_S, passing_error, read_failure
from shards.stores.retry import note_reached, retry, stop_on

if TYPE_CHECKING:
    from obstore.store import HTTPStore

MISSING = "content missing"
DIFFERS = "content differs from its SHA-1"
NOT_GZIP = "content not gzip"
TOO_LARGE = "content too large"
NOT_UTF8 = "content not UTF-8"
NOT_SHA1 = "content not named by a SHA-1"

MAX_BYTES = 64 << 20
"""Larger objects are refused; most objects of the archive have a few KB."""
_SMALL_BYTES = 1 << 20

_TRIES = 3
"""How often an object is fetched whose SHA-1 is wrong: a proxy may have truncated it."""
_SHA1 = re.compile(rb"[0-9a-fA-F]{40}")

Outcome = bytes | str
"""The gzip bytes of an object, or the reason why there are none."""

_large = threading.Lock()


def parse_key(value: bytes | None) -> bytes | None:
    """Return the 20 bytes of an archived file's hexadecimal SHA-1, or None if the value is not one."""
    return bytes.fromhex(value.decode()) if value is not None and _SHA1.fullmatch(value) else None


def fetch_archive_objects(keys: Iterable[bytes]) -> Generator[tuple[bytes, Outcome]]:
    """Fetch objects of the archive over several connections; yield each key with its outcome, in order of arrival.

    Raises:
        SourceError: the archive cannot be read, or not within the time that the settings allow.
    """
    settings = network_settings()
    endpoint = settings.content_endpoint.rstrip("/")
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise SourceError(f"content endpoint {endpoint!r}: expected https://HOST/PATH. Correct --content-endpoint.")
    client = _connect(endpoint, settings.timeout_s, settings.give_up_s)
    pending, stop = iter(keys), threading.Event()
    done: queue.SimpleQueue[Future[tuple[bytes, Outcome]]] = queue.SimpleQueue()

    def fetch(key: bytes) -> tuple[bytes, Outcome]:
        with stop_on(stop):
            return key, _fetch(client, endpoint, key, settings.give_up_s)

    pool = ThreadPoolExecutor(settings.content_connections, thread_name_prefix="fetch")
    try:
        # Twice as many objects as connections are under way or not yet yielded, so that no connection waits for us.
        under_way = 0
        while True:
            for key in islice(pending, 2 * settings.content_connections - under_way):
                pool.submit(fetch, key).add_done_callback(done.put)
                under_way += 1
            if not under_way:
                return
            yield done.get().result()
            under_way -= 1
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)


@functools.lru_cache(maxsize=1)
def _connect(endpoint: str, timeout_s: float, give_up_s: float) -> HTTPStore:
    from obstore import store

    wait = timedelta(seconds=timeout_s)
    connect = min(wait, timedelta(seconds=CONNECT_S))
    return store.HTTPStore.from_url(
        endpoint,
        client_options={
            "allow_http": True,
            "connect_timeout": connect,
            "read_timeout": wait,
            "timeout": timedelta(seconds=give_up_s),  # of a whole answer, which may come drop by drop
            "user_agent": "tokenmill",
        },
        retry_config={"max_retries": 0},
    )


def _fetch(client: HTTPStore, endpoint: str, key: bytes, give_up_s: float) -> Outcome:
    """Fetch one object of the archive; retry transient failures and bodies that are wrong."""
    what = f"{endpoint}/{key.hex()}"
    outcome: Outcome = DIFFERS
    for tries in range(_TRIES):
        if tries:
            time.sleep(random.uniform(0, tries / 2))
        body = retry(what, lambda: _request(client, endpoint, key.hex()), error_type=SourceError, give_up_s=give_up_s)
        outcome = _check(key, body) if isinstance(body, bytes) else body
        # A body that is wrong may be another one the next time: a proxy may have cut it.
        if outcome not in (DIFFERS, NOT_GZIP):
            break
    return outcome


def _request(client: HTTPStore, endpoint: str, name: str) -> Outcome:
    """Ask the archive for an object once; return its bytes, or the reason why there are none.

    Raises:
        TransientError: the request failed, and may succeed later.
        SourceError: the archive refuses the request, or the server is not an archive.
    """
    from obstore import exceptions

    try:
        answer = client.get(name)
        note_reached(endpoint)
        size = answer.meta["size"]
        if size > MAX_BYTES:
            return TOO_LARGE
        # Connections take turns with large objects, for the memory.
        if size <= _SMALL_BYTES:
            return bytes(answer.bytes())
        with _large:
            return bytes(answer.bytes())
    except (exceptions.BaseError, FileNotFoundError) as error:
        failure = read_failure(error)
        # In a bucket that may not be listed, S3 answers AccessDenied for a missing key.
        status, code = failure.status, failure.code
        if code == "NoSuchKey" or (status, code) in ((404, ""), (410, ""), (403, "AccessDenied")):
            return MISSING
        if "InvalidCertificate" in failure.text:  # no attempt of ten minutes makes it valid
            message = "the certificate of the server cannot be verified"
            raise SourceError(
                f"{endpoint}/{name}: {message}. Correct --content-endpoint, or install the certificate."
            ) from error
        passing = passing_error(failure, f"{endpoint}/{name}", endpoint)
        if passing is not None:
            raise passing from error
        shown = failure.shown or ("redirects" if "BareRedirect" in failure.text else type(error).__name__)
        raise SourceError(f"{endpoint}/{name}: {shown}. Correct --content-endpoint.") from error


def _check(key: bytes, body: bytes) -> Outcome:
    """Return an object of the archive, or what is wrong with it. Memory: one piece of the decompressed file."""
    # A small gzip may hold gigabytes, so the limit counts what comes out of it.
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
        # A mirror or a proxy may have decompressed it.
        is_text = hashlib.sha1(body, usedforsecurity=False).digest() == key
        return gzip.compress(body, 1) if is_text else NOT_GZIP
    return body if hashing.digest() == key else DIFFERS
