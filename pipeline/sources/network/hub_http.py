"""The HTTP client of the Hub's libraries, with the pipeline's retry policy.

huggingface_hub and datasets make all their requests through one client. `install_hub_http` replaces it by this one, so
that all requests (listings, READMEs, ranges of parquet files) are retried by the same policy and within the same time
limit.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from time import monotonic
from typing import Any, cast

import httpx2
import huggingface_hub
from huggingface_hub import constants

from pipeline.sources.base import SourceError
from pipeline.sources.network.settings import network_settings
from shards.stores.hub_client import retry_after_s
from shards.stores.retry import TRANSIENT_STATUSES, TransientError, retry

_MOST_BODY_BYTES = 256 << 20
"""Largest body. Bodies are read inside the attempt, so that a request whose body breaks off is retried."""
_LEAST_BYTES_PER_S = 10_000
"""If a body arrives more slowly than this, and the timeout has passed, the request is retried."""


class RetryingTransport(httpx2.BaseTransport):
    """Sends read-only requests; each is retried until it succeeds or the time limit has passed."""

    def __init__(self, **options: Any):
        self._inner = httpx2.HTTPTransport(**options)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request.

        Raises:
            SourceError: the request did not succeed in time, or HF_HUB_OFFLINE forbids it.
        """
        what = f"{request.method} {request.url.copy_with(query=None)}"
        if request.url.host != httpx2.URL(constants.ENDPOINT).host:
            request.headers.pop("authorization", None)  # the token is for the Hub alone, not for other hosts
        if constants.is_offline_mode():
            raise SourceError(f"{what}: HF_HUB_OFFLINE is set, and this is not in the cache. Unset it.")
        attempt = functools.partial(self._attempt, request)
        return retry(what, attempt, error_type=SourceError, give_up_s=network_settings().give_up_s)

    def _attempt(self, request: httpx2.Request) -> httpx2.Response:
        seconds = network_settings().timeout_s
        request.extensions["timeout"] = {"connect": seconds, "read": seconds, "write": seconds, "pool": None}
        try:
            response = self._inner.handle_request(request)
            if response.status_code in TRANSIENT_STATUSES:
                response.close()
                reason = f"HTTP {response.status_code} {response.reason_phrase}"
                raise TransientError(reason, retry_after_s=retry_after_s(response.headers))
            # The body is read here, inside the attempt, and handed on as if it had just come.
            length = response.headers.get("content-length")
            if request.method == "HEAD":
                return response
            try:
                body = _read_body(request, response, int(length) if length else None, timeout_s=seconds)
            finally:
                response.close()
        except httpx2.TransportError as error:
            raise TransientError(f"{type(error).__name__}: {error}") from error
        if length is not None and len(body) != int(length):
            raise TransientError(f"a body of {len(body)} bytes; {length} were announced")
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=httpx2.ByteStream(body),
            extensions=response.extensions,
        )

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


def _read_body(request: httpx2.Request, response: httpx2.Response, length: int | None, *, timeout_s: float) -> bytes:
    """Read a body, with limits on its size and its time.

    Raises:
        SourceError: the body is longer than the requested range, or than `_MOST_BODY_BYTES`.
        TransientError: the body arrives too slowly.
    """
    # Nobody asked for more bytes than these; a server that sends more must not fill the memory.
    asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
    most = int(asked[2]) - int(asked[1]) + 1 if asked and response.status_code == 206 else _MOST_BODY_BYTES
    if length is not None and length > most:
        raise SourceError(f"{request.url.copy_with(query=None)}: {length} bytes announced; expected at most {most}")
    started, size = monotonic(), 0
    parts: list[bytes] = []
    for part in cast("Iterable[bytes]", response.stream):
        parts.append(part)
        size += len(part)
        if size > most:
            raise SourceError(f"{request.url.copy_with(query=None)}: more than the {most} bytes allowed")
        if monotonic() - started > timeout_s + size / _LEAST_BYTES_PER_S:
            raise TransientError(f"{size} bytes in {monotonic() - started:.0f} s: too slow")
    return b"".join(parts)


@functools.cache
def install_hub_http() -> None:
    """Make the Hub's libraries in this process use the retrying client."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=network_settings().connections)
    huggingface_hub.set_client_factory(
        lambda: httpx2.Client(transport=RetryingTransport(limits=limits), follow_redirects=True)
    )
