"""moto's S3 service as a program of its own: its real application, answered over the HTTP of the other test servers.

moto's own server is werkzeug's for development: it starts a thread and a connection for each request, looks through
the folders of all of Amazon's services for the one that is meant, and keeps objects of more than 5 MB on disk. It takes
two to three times the processor time for the same answers.

moto checks that an object is absent and then writes it; a request that is answered in between wins, too. Here no two
requests write one object at the same time, so one of many creators wins, as with S3.

    python -m tests.support.servers.moto_s3 PORT
"""

import functools
import io
import signal
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any

from tests.support.servers.http11 import FileSpan, Request, Response
from tests.support.servers.loopback import Server

WRITERS = ("put_object", "_key_response_post")
"""The methods that check the condition and write: of a whole object, and of one sent in parts."""

SETTINGS = {
    # Memory of objects is kept: the kernel's zeroing of new memory takes longer than writing to it.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""The environment of the program."""

_OWN_HEADERS = ("connection", "content-length")


class Content(io.BytesIO):
    """The content of an object, in memory. moto's own temporary file copies all of it for each answer, even a range."""

    def __init__(self, max_size: int):
        super().__init__()

    def write(self, content: Any) -> int:
        written = super().write(content)
        self.getvalue()  # cuts the buffer to its size: only then `read` returns it without a copy
        return written


def take_turns(name: str, turns: Sequence[threading.RLock]) -> None:
    """Let a method of moto's answers run in one thread at a time for each object: a few objects share a turn."""
    from moto.s3.responses import S3Response

    method = getattr(S3Response, name)

    @functools.wraps(method)
    def locked(response: S3Response, *arguments: Any, **options: Any) -> Any:
        with turns[hash(response.request.path) % len(turns)]:
            return method(response, *arguments, **options)

    setattr(S3Response, name, locked)


def answer_with(clients: dict[str, Any], request: Request) -> Response:
    """Answer a request with the application of its path."""
    client = clients["moto_api" if request.path.startswith("/moto-api") else "s3"]
    place = f"{request.target}?{request.query}" if request.query else request.target
    answer = client.open(place, method=request.method, headers=request.headers, data=request.body)
    body: bytes | FileSpan = answer.get_data()
    if request.method == "HEAD":
        body = FileSpan("", 0, answer.content_length or 0)
    headers = {name: value for name, value in answer.headers if name.lower() not in _OWN_HEADERS}
    return Response(answer.status_code, headers, body)


if __name__ == "__main__":
    from moto.moto_server.werkzeug_app import create_backend_app
    from moto.s3 import models
    from werkzeug.test import Client

    models.tempfile = types.SimpleNamespace(SpooledTemporaryFile=Content)
    turns = [threading.RLock() for _ in range(64)]
    for name in WRITERS:
        take_turns(name, turns)
    clients = {name: Client(create_backend_app(name), use_cookies=False) for name in ("s3", "moto_api")}
    with Server(functools.partial(answer_with, clients), port=int(sys.argv[1])):
        signal.pause()
