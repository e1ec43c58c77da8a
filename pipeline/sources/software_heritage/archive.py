"""Software Heritage's archive: fetch files by the SHA-1 of their bytes over many connections, and check each one.

An object is `ENDPOINT/SHA1`, a gzip of the file with that SHA-1. `pipeline.sources.network.counted_retries` retries
transient failures. If a body has another SHA-1, it is fetched a few times more, each time over a new connection.
"""

from __future__ import annotations

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
from typing import TYPE_CHECKING

from pipeline.sources.network.counted_retries import retry_counted
from pipeline.sources.network.settings import network_settings
from pipeline.sources.software_heritage.http_connection import (
    MAX_BYTES,
    HttpConnection,
    TooLargeError,
    resolve_endpoint,
)

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

MISSING = "content missing"
DIFFERS = "content differs from its SHA-1"
NOT_GZIP = "content not gzip"
TOO_LARGE = "content too large"
NOT_UTF8 = "content not UTF-8"
NOT_SHA1 = "blob_id not a SHA-1"

_TRIES = 3
"""How often an object is fetched whose SHA-1 is wrong: a proxy may have truncated it."""
_PIECE_BYTES = 1 << 20
_SHA1 = re.compile(rb"[0-9a-fA-F]{40}")

Outcome = bytes | str
"""The gzip bytes of an object, or the reason why there are none."""


def parse_key(value: bytes | None) -> bytes | None:
    """Return the 20 bytes of an archived file's hexadecimal SHA-1, or None if the value is not one."""
    return bytes.fromhex(value.decode()) if value is not None and _SHA1.fullmatch(value) else None


def decode_archived(data: bytes, fallback_encoding: str | None) -> bytes | None:
    """Return a file's text in UTF-8; None if it is neither UTF-8 nor in `fallback_encoding`."""
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


def read_archive_again(source: SourceRecipe, ids: list[bytes | None]) -> list[bytes | None]:
    """Fetch documents once more, for validation.

    Args:
        source: gives the fallback encoding.
        ids: values of the column `blob_id`.

    Returns:
        Their text in UTF-8, in the order of `ids`; None for a file that cannot be fetched or decoded.

    Raises:
        SourceError: the archive cannot be read.
    """
    keys = [parse_key(value) for value in ids]
    texts: dict[bytes | None, bytes | None] = {}
    for key, outcome in fetch_archive_objects(dict.fromkeys(key for key in keys if key is not None)):
        texts[key] = (
            decode_archived(gzip.decompress(outcome), source.fallback_encoding) if isinstance(outcome, bytes) else None
        )
    return [texts.get(key) for key in keys]


def fetch_archive_objects(keys: Iterable[bytes]) -> Generator[tuple[bytes, Outcome]]:
    """Fetch objects of the archive over several connections; yield each key with its outcome, in order of arrival.

    Raises:
        SourceError: the archive cannot be read, or not within the time that the settings allow.
    """
    settings = network_settings()
    endpoint = resolve_endpoint(settings.content_endpoint)
    pending, lock, stop = iter(keys), threading.Lock(), threading.Event()
    results: queue.SimpleQueue[tuple[bytes, Outcome] | BaseException | None] = queue.SimpleQueue()
    slots = threading.Semaphore(2 * settings.content_connections)  # objects requested and not yet yielded

    def work() -> None:
        client = HttpConnection(endpoint, settings.timeout_s)
        try:
            while True:
                slots.acquire()
                with lock:
                    key = None if stop.is_set() else next(pending, None)
                if key is None:
                    slots.release()
                    break
                results.put((key, _fetch(client, key, settings.give_up_s, stop)))
            results.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that takes the results
            results.put(error)
        finally:
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
        slots.release(len(threads))


class _StoppedError(Exception):
    """Another connection failed for good, or the caller wants no more objects."""


def _fetch(client: HttpConnection, key: bytes, give_up_s: float, stop: threading.Event) -> Outcome:
    """Fetch one object; retry transient failures and bodies that are wrong."""

    def attempt() -> bytes | None:
        if stop.is_set():
            raise _StoppedError
        return client.get(key.hex())

    fault = DIFFERS
    for tries in range(_TRIES):
        if tries:
            client.close()
            time.sleep(random.uniform(0, tries / 2))
        try:
            body = retry_counted(f"{client.endpoint.geturl()}/{key.hex()}", attempt, give_up_s=give_up_s)
        except TooLargeError:
            return TOO_LARGE
        if body is None:
            return MISSING
        found = _check(key, body)
        if found is None:
            return body
        if found == NOT_GZIP and hashlib.sha1(body, usedforsecurity=False).digest() == key:
            return gzip.compress(body, 1)  # a mirror or a proxy has decompressed it
        if found == TOO_LARGE:
            return found
        fault = found
    return fault


def _check(key: bytes, body: bytes) -> str | None:
    """Return what is wrong with an object, or None. Memory: one piece of the decompressed file."""
    hashing = hashlib.sha1(usedforsecurity=False)
    left = MAX_BYTES
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            while piece := file.read(_PIECE_BYTES):
                left -= len(piece)
                if left < 0:
                    return TOO_LARGE
                hashing.update(piece)
    except (OSError, EOFError, zlib.error):
        return NOT_GZIP
    return None if hashing.digest() == key else DIFFERS
