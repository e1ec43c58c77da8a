"""The test servers themselves: every fault arrives as it is named. The tests of sources and sets read from them."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from tests.support.hub_builds import ROOT
from tests.support.servers import corpora
from tests.support.servers.bucket import Bucket
from tests.support.servers.corpora import FINEMATH, FINEWEB, SMOLLM, STORIES
from tests.support.servers.net_faults import KINDS


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> corpora.Corpora:
    return corpora.write(tmp_path_factory.mktemp("small"))


@pytest.fixture
def bucket(small: corpora.Corpora) -> Iterator[Bucket]:
    with Bucket(small.objects) as server:
        yield server


def ask(url: str, method: str = "GET", timeout: float = 5, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Send one request on a connection of its own, without following redirects."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=timeout)
    try:
        connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path, headers=headers)
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


# --- Faults ---


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_arrives_as_it_is_named(bucket: Bucket, kind: str) -> None:
    key = bucket.put(bytes(range(256)) * 40)
    address = f"{bucket.url}/content/{key}"
    size = len(ask(address)[2])
    bucket.faults.every(2, kind, retry_after_s=3, stall_s=0.2)
    ask(address)
    begin = time.monotonic()
    if kind in ("reset", "reset-body"):
        with pytest.raises(ConnectionResetError):
            ask(address)
    elif kind == "short":
        with pytest.raises(http.client.IncompleteRead) as problem:
            ask(address)
        assert len(problem.value.partial) == size // 2
    elif kind.isdigit():
        assert (ask(address)[0], ask(address, "HEAD")[0]) == (int(kind), 200)
        assert ask(address)[1]["retry-after"] == "3"
    else:
        assert len(ask(address)[2]) == size
        assert time.monotonic() - begin >= 0.2
        ask(address)
        with pytest.raises(TimeoutError):
            ask(address, timeout=0.05)
    bucket.faults.off()
    assert ask(address)[0] == 200
    assert [record.fault for record in bucket.requests[:3]] == [None, None, kind]


def test_faults_rotate_and_are_counted(bucket: Bucket) -> None:
    key = bucket.put(b"text")
    bucket.faults.every(3, "429", "503", match="/content/", most=3, retry_after_s=None)
    answers = [ask(f"{bucket.url}/content/{key}") for _ in range(12)]
    assert [status for status, _, _ in answers] == [200, 200, 429, 200, 200, 503, 200, 200, 429, 200, 200, 200]
    assert "retry-after" not in answers[2][1]
    with pytest.raises(ValueError, match="flood"):
        bucket.faults.every(3, "flood")


def test_a_server_that_is_gone_refuses_and_comes_back(bucket: Bucket) -> None:
    key = bucket.put(b"text")
    kept = http.client.HTTPConnection(urlsplit(bucket.url).netloc, timeout=5)
    kept.request("GET", f"/content/{key}")
    kept.getresponse().read()
    bucket.gone()
    with pytest.raises(ConnectionRefusedError):
        ask(f"{bucket.url}/content/{key}")
    with contextlib.closing(kept), contextlib.suppress(ConnectionResetError):
        assert kept.sock.recv(1) == b""
    bucket.back()
    assert ask(f"{bucket.url}/content/{key}")[0] == 200


# --- As commands, and the corpora ---


def test_both_run_as_commands(small: corpora.Corpora) -> None:
    key = pq.read_table(small.root / SMOLLM / "python-edu")["blob_id"][0].as_py()
    for script, option, path, asked in (
        ("hub", "--root", small.root, f"/api/datasets/{STORIES}"),
        ("bucket", "--tar", small.objects, f"/content/{key}"),
    ):
        command = [sys.executable, "-m", f"tests.support.servers.{script}", option, str(path), "--fail-every", "0"]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            status, _, body = ask(server.stdout.readline().strip() + asked)
            server.stdin.close()
            totals = json.loads(server.stdout.read())
        assert (status, server.returncode) == (200, 0)
        assert totals == {"requests": 1, "body_bytes": len(body), "statuses": {"200": 1}}


@pytest.mark.skipif(corpora.find() is None, reason="no corpora; set TOKENMILL_CORPORA to their folder")
def test_the_corpora_have_the_schemas_of_the_small_set(small: corpora.Corpora, tmp_path: Path) -> None:
    real = corpora.write(tmp_path, corpora.find())
    for repo, folder in (
        (FINEWEB, "sample/10BT"),
        (FINEMATH, "finemath-4plus"),
        (SMOLLM, "python-edu"),
        (STORIES, "data"),
    ):
        schemas = [pq.read_schema(sorted((one.root / repo / folder).iterdir())[0]) for one in (real, small)]
        assert schemas[0].equals(schemas[1])
        assert (real.root / repo / "README.md").is_file()
    assert (real.root / FINEWEB / "sample/10BT/000_00000.parquet").is_symlink()
    with Bucket(real.objects) as served:
        assert set(pq.read_table(real.root / SMOLLM / "python-edu")["blob_id"].to_pylist()) >= set(served.objects)
