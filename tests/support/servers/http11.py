"""The part of HTTP/1.1 on a socket that the test servers need: requests in, answers out.

Ranges (single ones) and bodies from files by sendfile; no chunked bodies, compression or TLS; the client is trusted.
"""

import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import unquote

REASONS = {status.value: status.phrase for status in HTTPStatus}
ONE_RANGE = re.compile(r"bytes=(\d*)-(\d*)$")


@dataclass(frozen=True, slots=True)
class Request:
    """A request: `target` is the path as sent (still quoted), `path` the same unquoted; header names in lower case."""

    method: str
    target: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Bytes of a file, to be sent without passing through Python."""

    path: str
    offset: int
    size: int


@dataclass(slots=True)
class Response:
    """A whole answer; the server cuts a range out of it, or drops the body of a HEAD, by itself."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | FileSpan = b""

    @property
    def size(self) -> int:
        return self.body.size if isinstance(self.body, FileSpan) else len(self.body)


def read_requests(connection: socket.socket, is_cut: Callable[[str, str], bool]) -> Iterator[Request]:
    """Yield the requests of a connection until the client closes it, or `is_cut(method, path)` says in mid-body."""
    with connection.makefile("rb", 65536) as stream:  # which reads a body into place, without another copy
        while line := stream.readline():
            method, target, _ = line.decode("latin-1").split(" ")
            headers = dict[str, str]()
            while len(line := stream.readline()) > len(b"\r\n"):
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            if not line:
                return
            length = int(headers.get("content-length", 0))
            path, _, query = target.partition("?")
            name = unquote(path) if "%" in path else path
            cut = length > 0 and is_cut(method, name)
            body = stream.read(length // 2 if cut else length)
            if cut or len(body) < length:
                return
            yield Request(method, path, name, query, headers, body)


def cut_range(request: Request, response: Response) -> Response:
    """Return the part that a single Range asks for (206), or 416; any other Range is ignored, as is allowed."""
    asked = ONE_RANGE.match(request.headers.get("range", "")) if response.status == 200 else None
    if asked is None or asked.group(1) == asked.group(2) == "":
        return response
    size = response.size
    if asked.group(1):
        begin, end = int(asked.group(1)), min(int(asked.group(2) or size - 1), size - 1)
    else:
        begin, end = max(size - int(asked.group(2)), 0), size - 1
    if begin > end:
        return Response(416, response.headers | {"Content-Range": f"bytes */{size}"})
    if isinstance(response.body, FileSpan):
        body: bytes | FileSpan = FileSpan(response.body.path, response.body.offset + begin, end + 1 - begin)
    else:
        body = response.body[begin : end + 1]
    return Response(206, response.headers | {"Content-Range": f"bytes {begin}-{end}/{size}"}, body)


def head_bytes(response: Response, *, close: bool) -> bytes:
    """Return the status line and the headers."""
    lines = [f"HTTP/1.1 {response.status} {REASONS[response.status]}", f"Content-Length: {response.size}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    lines.append("Connection: close\r\n\r\n" if close else "\r\n")
    return "\r\n".join(lines).encode("latin-1")


def pieces_without_end(kind: str, response: Response) -> Iterator[bytes]:
    """Yield an answer that does not end, in a way of `WITHOUT_END`; one that drips says how long it is."""
    head = head_bytes(response, close=True)
    if kind == "endless":
        head = re.sub(rb"Content-Length: \d+\r\n", b"", head)
    yield head[: -2 if kind == "drip-head" else None]
    while True:
        yield b"X: 1\r\n" if kind == "drip-head" else b" " * (1 << 16 if kind == "endless" else 1)


def send(connection: socket.socket, body: bytes | FileSpan, begin: int, end: int) -> Iterator[int]:
    """Send the body from byte begin to byte end; yields how many bytes the socket took, each time it took some."""
    if isinstance(body, bytes):
        view = memoryview(body)[begin:end]
        while view:
            count = connection.send(view)
            view = view[count:]
            yield count
    elif end > begin:
        with open(body.path, "rb", buffering=0) as file:
            while begin < end:
                count = os.sendfile(connection.fileno(), file.fileno(), body.offset + begin, end - begin)
                if count == 0:
                    raise OSError(f"{body.path} is shorter than it was: it changed while it was served")
                begin += count
                yield count
