"""The HTTP client of the Hub's libraries, with our policy for failures that pass.

huggingface_hub and datasets make all their requests through one client; `install` gives them this one, so that a
listing, a README and a range of a parquet file are all tried again in the same way, within the same bound.
"""

from __future__ import annotations

import functools
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import httpx2
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.utils import parse_ratelimit_headers

from pipeline.sources.base import SourceError
from pipeline.sources.network import TransientError, network, retry

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_WHOLE_BODY_BYTES = 64 << 20
"""Bodies up to this size are read within the attempt, so that one which breaks off is asked for again."""


class RetryingTransport(httpx2.BaseTransport):
    """Sends requests that only read; each is tried until it succeeds or the bound has passed."""

    def __init__(self, **options: Any):
        self._inner = httpx2.HTTPTransport(**options)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request.

        Raises:
            SourceError: it did not succeed in time, or HF_HUB_OFFLINE forbids it.
        """
        what = f"{request.method} {request.url.copy_with(query=None)}"
        if constants.is_offline_mode():
            raise SourceError(f"{what}: HF_HUB_OFFLINE is set, and this is not in the cache. Unset it.")
        return retry(what, functools.partial(self._attempt, request))

    def _attempt(self, request: httpx2.Request) -> httpx2.Response:
        seconds = network().timeout_s
        request.extensions["timeout"] = {"connect": seconds, "read": seconds, "write": seconds, "pool": None}
        try:
            response = self._inner.handle_request(request)
            if response.status_code in _TRANSIENT:
                response.close()
                reason = f"HTTP {response.status_code} {response.reason_phrase}"
                raise TransientError(reason, retry_after_s=_retry_after(response.headers))
            length = response.headers.get("content-length")
            if request.method == "HEAD" or length is None or int(length) > _WHOLE_BODY_BYTES:
                return response
            body = b"".join(response.stream)  # type: ignore[arg-type]
            response.close()
        except httpx2.TransportError as error:
            raise TransientError(f"{type(error).__name__}: {error}") from error
        if len(body) != int(length):
            raise TransientError(f"a body of {len(body)} bytes where {length} were announced")
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=httpx2.ByteStream(body),
            extensions=response.extensions,
        )

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


def _retry_after(headers: httpx2.Headers) -> float | None:
    """Return the seconds that the server asks to wait."""
    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    text = headers.get("retry-after", "")
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    except ValueError:
        return None


@functools.cache
def install() -> None:
    """Let this process's Hub libraries use the client."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=network().connections)
    huggingface_hub.set_client_factory(
        lambda: httpx2.Client(transport=RetryingTransport(limits=limits), follow_redirects=True)
    )
