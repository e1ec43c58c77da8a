"""A server on loopback, for the stand-ins of the Hub and of the bucket: one thread per connection.

Keep-alive, TCP_NODELAY, a record of every request, and faults on demand. A thread per connection is easy to read and
fast enough: 9,000 to 30,000 requests/s of one client process with 1 to 64 connections, 22 to 52 us of CPU each (4 KB
bodies, two cores shared with the client); `http.server` with the same objects in memory takes 43 to 95 us.
"""

import contextlib
import json
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tests.support.servers.http11 import (
    REASONS,
    Request,
    Response,
    cut_range,
    head_bytes,
    pieces_without_end,
    read_requests,
    send,
)
from tests.support.servers.net_faults import CUTS, WITHOUT_END, Fault, Faults

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER on, for 0 seconds: closing sends RST and forgets what was not sent yet."""


@dataclass(slots=True)
class Record:
    """What was asked and what was sent for it: `body_bytes` counts bytes given to the socket; status 0: no answer."""

    method: str
    path: str
    query: str
    range: str | None
    authorized: bool
    fault: str | None
    status: int = 0
    body_bytes: int = 0


class Server:
    """Serves `answer(request)` on 127.0.0.1 from threads of this process, between `with` and its end."""

    def __init__(self, answer: Callable[[Request], Response], *, listeners: int = 1, port: int = 0) -> None:
        self.faults = Faults()
        self.latency_s = 0.0
        """Waited before every answer: what a network's distance costs. Threads wait, so connections overlap."""
        self._answer = answer
        self._lock = threading.Lock()
        self._records: list[Record] = []
        self._stopping = threading.Event()
        self._connections: set[socket.socket] = set()
        self._busy = 0
        self._threads: list[threading.Thread] = []
        self._ports = [port] * listeners
        self._sockets: list[socket.socket] = []
        self.back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.gone()

    def urls(self) -> list[str]:
        """Return the address of each listener; they share one `answer`, and differ in their origin only."""
        return [f"http://127.0.0.1:{port}" for port in self._ports]

    # --- The lifetime of the listeners ---

    def back(self) -> None:
        """Listen, on the same ports as before if there were any."""
        self._stopping = threading.Event()
        for index, port in enumerate(self._ports):
            listener = socket.create_server(("127.0.0.1", port), backlog=512)
            self._ports[index] = listener.getsockname()[1]
            self._sockets.append(listener)
            thread = threading.Thread(target=self._accept, args=(listener, self._stopping), daemon=True)
            thread.start()
            self._threads.append(thread)

    def gone(self) -> None:
        """Stop listening and reset every open connection; connecting is refused until `back`."""
        self._stopping.set()
        for listener in self._sockets:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
            listener.close()
        self._sockets.clear()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                    connection.shutdown(socket.SHUT_RDWR)
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(timeout=5)

    def _accept(self, listener: socket.socket, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(connection, stopping), daemon=True)
            with self._lock:
                if stopping.is_set():
                    connection.close()
                    return
                self._connections.add(connection)
                self._threads = [one for one in self._threads if one.is_alive()] + [thread]
                thread.start()

    # --- What was asked ---

    @property
    def requests(self) -> list[Record]:
        """Return the records so far, in order of arrival; waits for answers that are being sent (1 s at most)."""
        for _ in range(1000):
            with self._lock:
                if not self._busy:
                    break
            self._stopping.wait(0.001)
        with self._lock:
            return list(self._records)

    def body_bytes(self, match: str = "") -> int:
        """Return the sum of body bytes sent for the paths that contain the regular expression."""
        return sum(record.body_bytes for record in self.requests if re.search(match, record.path))

    def forget(self) -> None:
        """Clear the records."""
        _ = self.requests
        with self._lock:
            self._records.clear()

    # --- One connection ---

    def _serve(self, connection: socket.socket, stopping: threading.Event) -> None:
        try:
            for request in read_requests(connection, lambda method, path: self._is_cut(connection, method, path)):
                if not self._exchange(connection, request, stopping):
                    return
        except (ConnectionError, ValueError):
            return  # the client went away, or sent what is not HTTP
        except OSError as problem:
            if not stopping.is_set():  # a file of the folder that is served is gone, or shorter than it was
                print(f"test server: {problem}", file=sys.stderr)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _is_cut(self, connection: socket.socket, method: str, path: str) -> bool:
        """Return whether to break off this request's body half-way with RST, and record it if so."""
        if not self.faults.cuts_upload(path):
            return False
        with self._lock:
            self._records.append(Record(method, path, "", None, False, "cut-upload"))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        return True

    def _exchange(self, connection: socket.socket, request: Request, stopping: threading.Event) -> bool:
        """Answer one request, or fail to in the way the faults say; returns whether the connection lives on."""
        fault = self.faults.choose(request.path)
        kind = fault.kind if fault else None
        get = request.headers.get
        authorized = "authorization" in request.headers
        record = Record(request.method, request.path, request.query, get("range"), authorized, kind)
        with self._lock:
            self._records.append(record)
            self._busy += 1
        try:
            if self.latency_s:
                wait(self.latency_s, stopping)
            if fault and kind == "stall":
                wait(fault.stall_s, stopping)
            response = cut_range(request, fault_response(fault) or self._whole(request))
            size = 0 if request.method == "HEAD" else response.size
            if kind == "reset" or (kind in CUTS and size == 0):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                return False
            record.status = response.status
            if fault and kind in WITHOUT_END:
                for piece in pieces_without_end(fault.kind, response):
                    connection.sendall(piece)
                    record.body_bytes += len(piece)
                    if kind != "endless":
                        wait(fault.stall_s, stopping)
            close = get("connection", "").lower() == "close"
            connection.sendall(head_bytes(response, close=close), socket.MSG_MORE if size else 0)
            first = size // 2 if kind in (*CUTS, "stall-body") else size
            for count in send(connection, response.body, 0, first):
                record.body_bytes += count
            if fault and kind == "stall-body":
                wait(fault.stall_s, stopping)
                for count in send(connection, response.body, first, size):
                    record.body_bytes += count
            if kind == "reset-body":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            return not close and kind not in CUTS
        finally:
            with self._lock:
                self._busy -= 1

    def _whole(self, request: Request) -> Response:
        try:
            response = self._answer(request)
        except Exception as problem:  # noqa: BLE001 - a server answers 500, and the test's log says why
            print(f"{request.method} {request.target}: {problem!r}", file=sys.stderr)
            response = Response(500, {"Content-Type": "text/plain"}, repr(problem).encode())
        return self.faults.override(request.path, response)


def wait(seconds: float, stopping: threading.Event) -> None:
    """Sleep, but give the connection up where the server is stopped."""
    if stopping.wait(seconds):
        raise ConnectionAbortedError("the server was stopped")


def fault_response(fault: Fault | None) -> Response | None:
    """Return the answer of a fault that is one: 429 or 503."""
    if fault is None or not fault.kind.isdigit():
        return None
    headers = {"Content-Type": "application/json", "Retry-After": "0"}
    return Response(int(fault.kind), headers, json.dumps({"error": REASONS[int(fault.kind)]}).encode())


def find_free_ports(count: int) -> list[int]:
    """Return TCP ports that nothing listens on now; all are different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
