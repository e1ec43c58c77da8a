"""Software Heritage's archive: files by the SHA-1 of their bytes, fetched by many connections, each one checked.

An object is `ENDPOINT/SHA1`, a gzip; it counts when what it holds has that SHA-1. A failure that may pass is tried
again by `pipeline.sources.network.retry`; a body that is not what it should be a few times, each by a new connection.
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

from pipeline.sources.network.retry import retry
from pipeline.sources.network.settings import network
from pipeline.sources.software_heritage.http_objects import MAX_BYTES, ObjectClient, TooLargeError, resolve_endpoint

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

MISSING = "content missing"
DIFFERS = "content differs from its SHA-1"
NOT_GZIP = "content not gzip"
TOO_LARGE = "content too large"
NOT_UTF8 = "content not UTF-8"
NOT_SHA1 = "blob_id not a SHA-1"

_TRIES = 3
"""How often an object is asked for that is not what its key says: a proxy may have cut it."""
_PIECE_BYTES = 1 << 20
_SHA1 = re.compile(rb"[0-9a-fA-F]{40}")

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

    Args:
        source: says how to decode them.
        ids: what the column `blob_id` holds.

    Returns:
        Their text in UTF-8, in the order of `ids`; None where it cannot be had.

    Raises:
        SourceError: the archive cannot be read.
    """
    keys = [parse_key(value) for value in ids]
    texts: dict[bytes | None, bytes | None] = {}
    for key, outcome in fetch_all(dict.fromkeys(key for key in keys if key is not None)):
        texts[key] = decode(gzip.decompress(outcome), source.fallback_encoding) if isinstance(outcome, bytes) else None
    return [texts.get(key) for key in keys]


def fetch_all(keys: Iterable[bytes]) -> Generator[tuple[bytes, Outcome]]:
    """Fetch objects by several connections; yield each key with its outcome, as they come.

    Raises:
        SourceError: the archive cannot be read, or not within the settings' bound.
    """
    settings = network()
    endpoint = resolve_endpoint(settings.content_endpoint)
    pending, lock, stop = iter(keys), threading.Lock(), threading.Event()
    results: queue.SimpleQueue[tuple[bytes, Outcome] | BaseException | None] = queue.SimpleQueue()
    slots = threading.Semaphore(2 * settings.content_connections)  # being fetched, or fetched and not yet taken

    def work() -> None:
        client = ObjectClient(endpoint, settings.timeout_s)
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
    """Another connection failed for good, or nobody wants the rest."""


def _fetch(client: ObjectClient, key: bytes, give_up_s: float, stop: threading.Event) -> Outcome:
    """Fetch one object, as often as it takes."""

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
            body = retry(f"{client.endpoint.geturl()}/{key.hex()}", attempt, give_up_s=give_up_s)
        except TooLargeError:
            return TOO_LARGE
        if body is None:
            return MISSING
        found = _check(key, body)
        if found is None:
            return body
        if found == NOT_GZIP and hashlib.sha1(body, usedforsecurity=False).digest() == key:
            return gzip.compress(body, 1)  # a mirror, or a proxy, that has unpacked it
        if found == TOO_LARGE:
            return found
        fault = found
    return fault


def _check(key: bytes, body: bytes) -> str | None:
    """Return what is wrong with an object, or None. Memory: one piece of what it unpacks to."""
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
