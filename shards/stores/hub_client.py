"""The client of the Hugging Face Hub: its endpoint, its limits of time and bytes, and messages for Hub errors.

Every request goes through `huggingface_hub`, which takes the endpoint from HF_ENDPOINT and the token from HF_TOKEN or
its own login; a token is never printed. The library waits and reads without end; `ask_hub` does neither, whatever a Hub
or a proxy answers.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from shards.errors import TokenmillError, lacks_memory
from shards.stores.retry import (
    TRANSIENT_STATUSES,
    Result,
    StoreError,
    TransientError,
    note_reached,
    parse_retry_after,
    retry,
)

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import HfApi

_QUERY = re.compile(r"\?[^\s'\")>]*")
"""The query of a signed URL grants access, so messages leave it out."""

CONNECT_S = 10.0
"""Seconds until a connection must be made."""

ANSWER_S = 120.0
"""Seconds without an answer after which a request fails: the Hub takes up to 60 to check the files of a commit."""

MOST_ANSWER_BYTES = 128 << 20
"""Most bytes of the answers to one question, such as the pages of a listing, which is then of 400,000 files."""

_answer_bytes: ContextVar[list[int] | None] = ContextVar("answer_bytes", default=None)
"""How many bytes the answers to the question under way may still have; None in threads that the library starts."""

_wait_s, _give_up_s = ANSWER_S, None
"""The limits that `limit_hub_requests` has set for this process."""

PASSING_STATUSES = TRANSIENT_STATUSES | {412}
"""HTTP statuses of failures that may pass. 412: another commit came first; the listing must be read again."""


def open_hub_client() -> HfApi:
    """Return the Hub's client, at the endpoint that HF_ENDPOINT names."""
    from huggingface_hub import HfApi

    return HfApi(endpoint=hub_endpoint(), library_name="tokenmill")


def limit_hub_requests(give_up_s: float | None, *, wait_s: float = ANSWER_S) -> None:
    """Limit how long requests of this process's client are retried, and how long each waits for an answer.

    The library itself waits forever in most of its requests.

    Args:
        give_up_s: seconds for all attempts; `shards.stores.retry.GIVE_UP_S` when None.
        wait_s: seconds without an answer; `ANSWER_S`, or `give_up_s`, if that is less.
    """
    global _wait_s, _give_up_s
    _wait_s, _give_up_s = min(wait_s, ANSWER_S, give_up_s or ANSWER_S), give_up_s
    _limit_client()


def retry_hub(what: str, attempt: Callable[[], Result], *, interrupt: bool = False) -> Result:
    """Call `shards.stores.retry.retry` with the limit of this process's client."""
    return retry(what, attempt, give_up_s=_give_up_s, interrupt=interrupt)


@functools.cache
def _limit_client() -> None:
    """Let the library make its client with limits of time and bytes, from now on, and print nothing.

    It would print progress bars, and warnings with signed URLs.
    """
    import httpx2
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import disable_progress_bars, logging
    from huggingface_hub.utils._http import default_client_factory

    if os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS") is None:
        disable_progress_bars()
    logging.set_verbosity_error()

    class Bounded(httpx2.SyncByteStream):
        def __init__(self, stream: httpx2.SyncByteStream):
            self._stream = stream

        def __iter__(self) -> Iterator[bytes]:
            left = _answer_bytes.get() or [MOST_ANSWER_BYTES]
            for piece in self._stream:
                left[0] -= len(piece)
                if left[0] < 0:
                    raise httpx2.DecodingError("the answer has more bytes than were asked for (a proxy?)")
                yield piece

        def close(self) -> None:
            self._stream.close()

    def limit(request: httpx2.Request) -> None:
        given: dict[str, float | None] = request.extensions.get("timeout", {})
        waits = {kind: given.get(kind) or _wait_s for kind in ("connect", "read", "write", "pool")}
        request.extensions["timeout"] = waits | {"connect": min(CONNECT_S, waits["connect"])}
        request.headers["accept-encoding"] = "identity"
        if (_answer_bytes.get() or [0])[0] < 0:
            raise httpx2.DecodingError("the answers have more bytes than were asked for (a proxy?)")

    def bound(response: httpx2.Response) -> None:
        note_reached(response.request.url.netloc.decode())
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":  # a few bytes may then stand for any number
            raise httpx2.DecodingError(f"the answer is compressed ({encoding!r}), unasked (a proxy?)")
        response.stream = Bounded(cast("httpx2.SyncByteStream", response.stream))

    def make_client() -> httpx2.Client:
        client = default_client_factory()
        hooks = client.event_hooks
        client.event_hooks = {"request": [*hooks["request"], limit], "response": [*hooks["response"], bound]}
        return client

    set_client_factory(make_client)


def ask_hub(what: str, request: Callable[[], Result], *, most_bytes: int | None = None) -> Result:
    """Ask the Hub by its library, and again if it fails in a way that may pass; return what `request` returns.

    Args:
        what: the address or file that messages begin with.
        request: calls the library.
        most_bytes: of all answers to one attempt; `MOST_ANSWER_BYTES` when None.

    Raises:
        StoreError: the Hub refuses, does not answer in time, or answers with more, or with what is no answer.
    """
    _limit_client()
    left = [0]

    def attempt() -> Result:
        left[0] = MOST_ANSWER_BYTES if most_bytes is None else most_bytes
        _answer_bytes.set(left)
        with hub_errors(what):
            return request()

    try:
        return retry_hub(what, attempt, interrupt=True)
    finally:
        left[0] = -1  # an attempt that was left to itself ends with its next request, or the next bytes of an answer


def hub_endpoint() -> str | None:
    """Return the endpoint of the Hub's client from HF_ENDPOINT, or None if it is not set."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


@contextlib.contextmanager
def hub_errors(what: str) -> Generator[None]:
    """Turn what `huggingface_hub` and its transport raise into a `StoreError`, a `TransientError` if it may pass.

    Messages for the client's errors are written here and nowhere else.

    Args:
        what: the address or file that the message begins with.
    """
    import httpx2
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except TokenmillError:
        raise
    except Exception as error:
        # The library wraps what went wrong, and quotes signed addresses.
        cause: BaseException = error
        while isinstance(cause, RuntimeError | LocalEntryNotFoundError) and cause.__cause__ is not None:
            cause = cause.__cause__
        said = _QUERY.sub("", getattr(cause, "server_message", None) or str(cause).partition("\n")[0]).strip(" .")
        kind = f"{type(cause).__name__}: {said}"
        passing: dict[str, Any] | None = None
        match cause:
            case _ if lacks_memory(cause):
                raise cause from error
            case RevisionNotFoundError():
                told = f"there is no such revision. {say_token()}."
            case GatedRepoError():
                told = f"gated: ask for access on the dataset's page. {say_token()}."
            case RepositoryNotFoundError():
                told = f"no such dataset, or it is private. {say_token()}."
            case HfHubHTTPError():
                status = cause.response.status_code
                told = f"the Hub answered HTTP {status}: {said}"
                if status in PASSING_STATUSES:
                    passing = {"retry_after_s": retry_after_s(cause.response.headers)}
                elif status in (401, 403):
                    told = f"refused (HTTP {status}): {said}. {say_token()}."
            case HFValidationError():
                told = f"not a name on the Hub: {said}. Correct it."
            case OfflineModeIsEnabled():
                told = said
            case httpx2.ConnectError() | httpx2.ConnectTimeout():
                host = cause.request.url.netloc.decode()
                passing = {"no_connection_to": host}
                told = (
                    f"no connection to {host} ({said}). Is HF_ENDPOINT right? Does this machine need a proxy "
                    "(HTTPS_PROXY)? With HF_HUB_OFFLINE=1, a build reads only its cache"
                )
            case httpx2.TransportError() | ConnectionError() | TimeoutError():  # the builtin ones are Xet's
                hint = " A Hub without Xet needs HF_HUB_DISABLE_XET=1." if "/xet-" in said else ""
                told, passing = f"{kind}. Is HF_ENDPOINT right?{hint}", {}
            case RuntimeError() if "client has been closed" in said:
                # After a connection error of one thread, the library closes the client that all threads share.
                told, passing = "another connection broke", {}
            case OSError() if said.startswith("Consistency check failed"):
                told, passing = "the Hub broke off its answer", {}
            case AttributeError() if cause.obj is None and cause.name in ("get", "request", "stream"):
                # It does so just when this thread asks for that client, and returns None.
                told, passing = "another connection broke", {}
            # The library cannot parse an answer that is not from a Hub; it takes the types in one for granted.
            case (
                httpx2.HTTPError() | httpx2.InvalidURL() | ValueError() | RuntimeError()
                | TypeError() | LookupError() | AttributeError()
            ):  # fmt: skip
                told = f"{kind}. Is HF_ENDPOINT right?"
            case _ if type(cause).__name__.startswith("Xet"):
                told = f"{kind}. {say_token()}."
            case _:
                raise
        message = f"{what}: {told}"
        raise (TransientError(message, **passing) if passing is not None else StoreError(message)) from error


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the Hub tells its client to wait, by its rate limit or Retry-After; else None."""
    from huggingface_hub.utils import parse_ratelimit_headers

    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    return parse_retry_after(headers.get("retry-after", ""))


def say_token() -> str:
    """Return a sentence that says whether the Hub's client sent a token, and how to give it one."""
    from huggingface_hub import get_token

    if get_token():
        return "A token was sent, but it lacks the right, or the name is wrong"
    return "No token was sent: set HF_TOKEN, or log in with `hf auth login`"
