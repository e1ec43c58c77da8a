"""Real object stores on loopback, each in a process of its own, and a proxy that makes their requests fail.

`moto_store` does what S3 does, creation under a condition included; its buckets are in memory.
"""

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shards.stores.object_store import open_objects
from tests.support.servers import moto_s3
from tests.support.servers.http11 import FileSpan, Request, Response
from tests.support.servers.loopback import Server, find_free_ports

BUCKET = "bucket"
ACCESS_KEY, SECRET_KEY = "AKIDEXAMPLEOFTESTS", "secret-of-the-tests-0123456789abcdef"
START_S = 60


@dataclass(frozen=True, slots=True)
class ObjectServer:
    """A running server."""

    url: str
    pid: int

    def send(self, method: str, path: str) -> None:
        with contextlib.closing(http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)) as connection:
            connection.request(method, path)
            answer = connection.getresponse()
            assert answer.status == 200, f"{self.url}: {method} {path}: {answer.read()!r}"

    def empty_bucket(self) -> str:
        """Make the bucket, or remove everything in it if there is one (moto only); return its address."""
        self.send("PUT", f"/{BUCKET}")
        return f"s3://{BUCKET}"

    def reset(self) -> None:
        """Remove every bucket (moto only)."""
        self.send("POST", "/moto-api/reset")


@contextlib.contextmanager
def moto_store() -> Iterator[ObjectServer]:
    """Run moto's S3 server. Its first bucket is `BUCKET`."""
    pytest.importorskip("moto.server")
    (port,) = find_free_ports(1)
    settings = moto_s3.SETTINGS | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with running([sys.executable, "-P", "-m", moto_s3.__name__, str(port)], port, settings) as server:
        server.empty_bucket()
        yield server


@contextlib.contextmanager
def running(command: list[str], port: int, settings: Mapping[str, str] | None = None) -> Iterator[ObjectServer]:
    """Run a server until the end of the block, with settings in its environment; wait until it listens.

    Raises:
        RuntimeError: it ended, or took longer than `START_S`.
    """
    environment = os.environ | {"PYTHONWARNINGS": "", **(settings or {})}
    with tempfile.TemporaryFile() as log:  # not a pipe: a server that fills one stops
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            ends = time.monotonic() + START_S
            while not _listens(port):
                if time.monotonic() > ends or process.poll() is not None:
                    log.seek(0)
                    raise RuntimeError(f"{command}: does not listen on {port}: {log.read()[-2000:]!r}")
                time.sleep(0.05)
            yield ObjectServer(f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Proxy(Server):
    """Passes requests on to an object store, records them, and makes them fail as its `faults` say.

    What a store cannot do: headers of requests that it `ignores`.
    """

    def __init__(self, store: ObjectServer, *, ignores: tuple[str, ...] = ()) -> None:
        self._ignored = ignores
        self._to = urlsplit(store.url).netloc
        super().__init__(self._pass_on)
        (self.url,) = self.urls()

    def _pass_on(self, request: Request) -> Response:
        for name in self._ignored:
            request.headers.pop(name, None)
        dropped = ("connection", "content-length", "transfer-encoding", "keep-alive")
        headers = {name: value for name, value in request.headers.items() if name not in dropped}
        target = f"{request.target}?{request.query}" if request.query else request.target
        with contextlib.closing(http.client.HTTPConnection(self._to, timeout=60)) as connection:
            connection.request(request.method, target, request.body, headers)
            answer = connection.getresponse()
            body: bytes | FileSpan = answer.read()
        if request.method == "HEAD":
            body = FileSpan("", 0, int(answer.getheader("content-length") or 0))
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in dropped}
        return Response(answer.status, kept, body)


def upload(folder: Path, place: str) -> None:
    """Put the files of a folder into a bucket, in the place of those that are there."""
    store = open_objects(place)
    store.delete_all()
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path)


def aws_environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Point this process, and those it starts, at an object store; no other AWS settings count."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in aws_settings(url).items():
        monkeypatch.setenv(name, value)


def aws_settings(url: str) -> dict[str, str]:
    """Return the environment in which a program uses an object store of the tests."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
    }
