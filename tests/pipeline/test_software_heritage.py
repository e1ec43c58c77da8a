"""The client of Software Heritage's archive, and the journal: a bucket on loopback that fails in every way it can."""

import gzip
import hashlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.sources.base import SourceError
from pipeline.sources.software_heritage import archive
from pipeline.sources.software_heritage.fetch import Journal
from tests.support.servers.bucket import Bucket, refusal
from tests.support.servers.http11 import Response
from tests.support.servers.loopback import Server

Fetch = Callable[..., Any]
TEXT = b"print('a file')\n" * 40


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with Bucket() as server:
        yield server


@pytest.fixture
def fetch(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Fetch:
    """Return `fetch(*keys, endpoint=..., **settings)`: the outcome of the last key."""

    def fetch(*keys: str, endpoint: str = "", **settings: float) -> Any:
        values = {"timeout_s": 5, "give_up_s": 20, "content_connections": 8} | settings
        values |= {"content_endpoint": endpoint or f"{bucket.url}/content"}
        monkeypatch.setenv("TOKENMILL_NETWORK", json.dumps(values))
        outcomes = dict(archive.fetch_archive_objects([bytes.fromhex(key) for key in keys]))
        return outcomes[bytes.fromhex(keys[-1])]

    return fetch


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (gzip.compress(b"another file"), archive.DIFFERS),
        (gzip.compress(TEXT)[:30], archive.NOT_GZIP),
        (gzip.compress(TEXT)[:-8] + bytes(8), archive.NOT_GZIP),
        (b"<html>log in first</html>", archive.NOT_GZIP),
        (b"", archive.DIFFERS),
    ],
    ids=["another file", "truncated", "wrong CRC", "a page", "nothing"],
)
def test_a_body_that_stays_wrong_has_its_reason(bucket: Bucket, fetch: Fetch, body: bytes, reason: str):
    key = bucket.put(TEXT)
    bucket.faults.on(key, body=body)
    assert fetch(key) == reason
    assert len(bucket.requests) == 3


def test_a_body_that_something_has_unpacked_is_taken(bucket: Bucket, fetch: Fetch):
    key = bucket.put(TEXT)
    bucket.faults.on(key, body=TEXT)
    assert gzip.decompress(fetch(key)) == TEXT
    assert len(bucket.requests) == 1


NOISE = b"".join(hashlib.sha1(b"%d" % i).digest() for i in range((1 << 21) // 20))
"""What gzip makes larger."""


@pytest.mark.parametrize(
    ("content", "is_taken"),
    [
        (bytes((1 << 21) + 1), False),
        (bytes((1 << 21) - 1), True),
        (NOISE + bytes(20), False),
        (NOISE[:-2000], True),
    ],
    ids=["too much", "well packed", "noise", "less noise than its gzip"],
)
def test_no_more_than_the_bound_is_taken(
    bucket: Bucket, fetch: Fetch, monkeypatch: pytest.MonkeyPatch, content: bytes, is_taken: bool
):
    monkeypatch.setattr(archive, "MAX_BYTES", 1 << 21)
    outcome = fetch(bucket.put(content))
    assert gzip.decompress(outcome) == content if is_taken else outcome == archive.TOO_LARGE
    assert len(bucket.requests) == 1


@pytest.mark.parametrize("kind", ["reset", "429", "reset-body", "503", "short", "stall", "stall-body"])
def test_a_failure_that_passes_is_never_held_against_a_file(
    bucket: Bucket, fetch: Fetch, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.setattr("shards.stores.retry.LONGEST_PAUSE_S", 0.05)
    key = bucket.put(TEXT)
    bucket.faults.every(1, kind, most=5, stall_s=20)
    started = time.monotonic()
    assert isinstance(fetch(key, timeout_s=0.2), bytes)
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("kind", ["drip", "drip-head"])
def test_an_object_that_comes_drop_by_drop_is_given_up(bucket: Bucket, fetch: Fetch, kind: str):
    key = bucket.put(TEXT)
    bucket.faults.every(1, kind, stall_s=0.05)
    with pytest.raises(SourceError, match="gave up after"):
        fetch(key, give_up_s=0.5)


def test_a_server_that_is_gone_is_given_up_in_time(fetch: Fetch):
    before = set(threading.enumerate())
    with socket.socket() as closed:  # no other server takes this port
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}/content"
        started = time.monotonic()
        with pytest.raises(
            SourceError, match=rf"{endpoint}/[0-9a-f]{{40}}: gave up after .* nothing answers at .*run the"
        ):
            fetch(*(hashlib.sha1(b"%d" % index).hexdigest() for index in range(30)), endpoint=endpoint, give_up_s=1)
        assert time.monotonic() - started < 60  # as against ten minutes: a busy machine may be slow
        deadline = time.monotonic() + 60
        while {thread for thread in threading.enumerate() if thread.name.startswith("fetch")} - before:
            assert time.monotonic() < deadline, "threads that nobody waits for go on"
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refusal(403, "AccessDenied"), None),
        (refusal(404, "NoSuchKey"), None),
        (Response(410, {}, b""), None),
        (Response(403, {}, b"<html>blocked by policy</html>"), "HTTP 403. Correct --content-endpoint"),
        (refusal(404, "NoSuchBucket"), "HTTP 404 NoSuchBucket"),
        (Response(301, {"x-amz-bucket-region": "eu-west-1"}, b""), "redirects. Correct --content-endpoint"),
    ],
)
def test_a_missing_object_is_told_from_a_refusal(fetch: Fetch, answer: Response, said: str):
    with Server(lambda request: answer) as server:
        if said is None:
            assert fetch("ab" * 20, endpoint=server.urls()[0]) == archive.MISSING
        else:
            with pytest.raises(SourceError, match=said):
                fetch("ab" * 20, endpoint=server.urls()[0])
        assert len(server.requests) == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl")
def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(fetch: Fetch, tmp_path: Path):
    made = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    subprocess.run(
        [*made.split(), "-addext", "subjectAltName=IP:127.0.0.1"], cwd=tmp_path, check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(SourceError, match="the certificate of the server cannot be verified"):
            fetch("ab" * 20, endpoint=f"https://127.0.0.1:{server.server_port}/content")
        server.shutdown()


KEY = hashlib.sha1(b"9").digest()


@pytest.mark.parametrize("body", [gzip.compress(b"other bytes", mtime=0), b"no gzip", b""])
def test_a_journal_that_the_disk_altered_is_not_used(tmp_path: Path, body: bytes):
    with closing(Journal(tmp_path / "journal")) as journal:
        journal.add(KEY, body)
        with pytest.raises(SourceError, match=r"was damaged after it was written, and has been deleted\. Run the same"):
            journal.read(KEY)
    assert not (tmp_path / "journal").exists()
