"""The test servers themselves: real clients get real answers, and every fault arrives as it is named.

The Hub's clients run in a process of their own, with HF_ENDPOINT and a home of their own, as the product runs them.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from tests.support.hub_builds import ROOT
from tests.support.servers import corpora
from tests.support.servers.bucket import Bucket
from tests.support.servers.corpora import FINEMATH, FINEWEB, SMOLLM, STORIES
from tests.support.servers.hub import TOKEN, Hub
from tests.support.servers.net_faults import KINDS

FILE = "sample/10BT/001_00000.parquet"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> corpora.Corpora:
    return corpora.write(tmp_path_factory.mktemp("small"))


@pytest.fixture
def hub(small: corpora.Corpora) -> Iterator[Hub]:
    with Hub(small.root) as server:
        yield server


@pytest.fixture
def bucket(small: corpora.Corpora) -> Iterator[Bucket]:
    with Bucket(small.objects) as server:
        yield server


def run_client(hub: Hub, home: Path, code: str, token: str = "") -> Any:
    """Run code, which sets `result`, in a process that takes `hub` for the Hub; returns the result."""
    home_of = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": token, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    # os._exit: at the interpreter's end, threads of a client's libraries sometimes abort the process.
    program = f"import json, os\n{code}\nprint(json.dumps(result), flush=True)\nos._exit(0)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | home_of, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


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


# --- The Hub and its clients ---


def test_the_api_tells_what_is_in_the_folder(small: corpora.Corpora, tmp_path: Path) -> None:
    with Hub(small.root, page_size=4) as hub:
        told = run_client(
            hub,
            tmp_path,
            f"""
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download
api, repo, kind = HfApi(), {FINEWEB!r}, {{"repo_type": "dataset"}}
info = api.dataset_info(repo, files_metadata=True)
tree = list(api.list_repo_tree(repo, recursive=True, **kind))
with HfFileSystem().open(f"datasets/{{repo}}@{{info.sha}}/{FILE}", block_size=1000) as file:
    file.seek(2000)
    part = file.read(500)
result = {{
    "sha": info.sha, "configs": [one["config_name"] for one in info.card_data["configs"]],
    "siblings": {{one.rfilename: [one.size, one.lfs and one.lfs.sha256] for one in info.siblings}},
    "tree": {{one.path: one.size for one in tree if hasattr(one, "size")}},
    "folders": [one.path for one in tree if not hasattr(one, "size")],
    "top": [one.path for one in api.list_repo_tree(repo, **kind)],
    "refs": [[one.name, one.target_commit] for one in api.list_repo_refs(repo, **kind).branches],
    "paths": [one.path for one in api.get_paths_info(repo, ["{FILE}", "nope", "data"], expand=True, **kind)],
    "part": part.hex(), "file": hf_hub_download(repo, "{FILE}", **kind), "user": api.whoami()["name"],
}}""",
            TOKEN,
        )
        folder = small.root / FINEWEB
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        lfs = {name: hashlib.sha256(content).hexdigest() for name, content in files.items() if "parquet" in name}
        assert told["sha"] == hub.commit(FINEWEB)
        assert told["configs"] == ["default", "sample-10BT", "sample-100BT", "sample-350BT"]
        assert told["siblings"] == {name: [len(content), lfs.get(name)] for name, content in files.items()}
        assert told["tree"] == {name: len(content) for name, content in files.items()}
        assert set(told["folders"]) == {
            "data",
            "data/CC-MAIN-2013-20",
            "sample",
            *(Path(one).parent.as_posix() for one in lfs),
        }
        assert told["top"] == [".gitattributes", "README.md", "data", "sample"]
        assert told["refs"] == [["main", hub.commit(FINEWEB)]]
        assert told["paths"] == [FILE, "data"]
        assert bytes.fromhex(told["part"]) == files[FILE][2000:2500]
        assert Path(told["file"]).read_bytes() == files[FILE]
        assert told["user"] == "tester"
        # 18 entries and folders in pages of 4; and tokens went to the Hub, never to the CDN.
        assert sum("cursor=" in record.query for record in hub.requests) >= 4
        assert {record.authorized for record in hub.requests if record.path.startswith("/cdn/")} == {False}
        assert all(record.authorized for record in hub.requests if "/resolve/" in record.path)


def test_errors_are_the_classes_that_clients_know(hub: Hub, tmp_path: Path) -> None:
    hub.private(FINEMATH, "hf_owner")
    hub.gated(SMOLLM, "hf_member")
    told = run_client(
        hub,
        tmp_path,
        f"""
from huggingface_hub import HfApi, hf_hub_download
def outcome(call, *values, **named):
    try:
        call(*values, **named)
    except Exception as problem:
        return [type(problem).__name__, problem.response.status_code]
info, get = HfApi().dataset_info, lambda repo, name, **named: hf_hub_download(repo, name, repo_type="dataset", **named)
tree = lambda *values, **named: list(HfApi().list_repo_tree(*values, repo_type="dataset", **named))
result = [
    outcome(info, "no/repo"), outcome(info, "no/repo", token={TOKEN!r}),
    outcome(info, {FINEWEB!r}, revision="0" * 40), outcome(get, {FINEWEB!r}, "no.parquet"),
    outcome(tree, {FINEWEB!r}, "no/folder"),
    outcome(info, {FINEMATH!r}), outcome(info, {FINEMATH!r}, token={TOKEN!r}),
    outcome(info, {FINEMATH!r}, token="hf_owner"),
    outcome(info, {SMOLLM!r}), outcome(get, {SMOLLM!r}, "README.md"),
    outcome(get, {SMOLLM!r}, "README.md", token={TOKEN!r}), outcome(get, {SMOLLM!r}, "README.md", token="hf_member"),
    outcome(info, {FINEWEB!r}, token="hf_wrong"),
]""",
    )
    assert told == [
        ["RepositoryNotFoundError", 401], ["RepositoryNotFoundError", 404],
        ["RevisionNotFoundError", 404], ["RemoteEntryNotFoundError", 404], ["RemoteEntryNotFoundError", 404],
        ["RepositoryNotFoundError", 401], ["RepositoryNotFoundError", 404], None,
        None, ["GatedRepoError", 401], ["GatedRepoError", 403], None, ["HfHubHTTPError", 401],
    ]  # fmt: skip


def test_datasets_finds_every_configuration_and_reads_rows(hub: Hub, small: corpora.Corpora, tmp_path: Path) -> None:
    wanted = [
        (FINEWEB, "default"), (FINEWEB, "sample-10BT"), (FINEMATH, "finemath-4plus"), (SMOLLM, "python-edu"),
        (SMOLLM, "fineweb-edu-dedup"), (STORIES, None),
    ]  # fmt: skip
    told = run_client(
        hub,
        tmp_path,
        f"""
import datasets
result = []
for repo, config, commit in {[(repo, config, hub.commit(repo)) for repo, config in wanted]}:
    builder = datasets.load_dataset_builder(repo, config, revision=commit)
    row = next(iter(builder.as_streaming_dataset(split="train").take(1)))
    files = {{str(split): [one.split("@")[1] for one in files] for split, files in builder.config.data_files.items()}}
    result.append([files, sorted(row), builder.hash])""",
    )
    folders = ["data/CC-MAIN-2013-20", "sample/10BT", "finemath-4plus", "python-edu", "fineweb-edu-dedup"]
    for (repo, _), folder, (files, _, commit) in zip(wanted, folders, told, strict=False):
        names = sorted(path.name for path in (small.root / repo / folder).iterdir())
        assert commit == hub.commit(repo)
        assert files == {"train": [f"{commit}/{folder}/{name}" for name in names]}
    assert {split: len(files) for split, files in told[-1][0].items()} == {"train": 4, "validation": 1}
    assert told[1][1] == sorted(corpora.FINEWEB_COLUMNS)
    assert told[2][1] == sorted(corpora.FINEMATH_COLUMNS)
    assert told[3][1] == sorted(corpora.PYTHON_COLUMNS)
    assert [row for _, row, _ in told[4:]] == [["id", "metadata", "text"], ["text"]]


def test_a_download_survives_a_cut(hub: Hub, small: corpora.Corpora, tmp_path: Path) -> None:
    hub.faults.every(1, "short", match="^/cdn/", most=1)
    code = f'from huggingface_hub import *; result = hf_hub_download({FINEWEB!r}, "{FILE}", repo_type="dataset")'
    assert Path(run_client(hub, tmp_path, code)).read_bytes() == (small.root / FINEWEB / FILE).read_bytes()
    size = (small.root / FINEWEB / FILE).stat().st_size
    cut, whole = [record for record in hub.requests if record.path.startswith("/cdn/")]
    assert (cut.status, cut.fault, cut.body_bytes) == (200, "short", size // 2)
    # The client resumes by a range only past its first 10 MB, the size of its pieces: it asks for this file anew.
    assert (whole.status, whole.range, whole.body_bytes) == (200, None, size)
    assert hub.body_bytes("^/cdn/") == size // 2 + size


def test_resolve_redirects_large_files_to_an_address_that_needs_no_token(hub: Hub, small: corpora.Corpora) -> None:
    hub.private(FINEWEB, "hf_owner")
    content = (small.root / FINEWEB / FILE).read_bytes()
    address = f"{hub.url}/datasets/{FINEWEB}/resolve/{hub.commit(FINEWEB)}/{FILE}"
    status, headers, _ = ask(address, "HEAD", Authorization="Bearer hf_owner")
    assert status == 302
    assert headers["x-repo-commit"] == hub.commit(FINEWEB)
    assert headers["x-linked-size"] == str(len(content))
    assert headers["x-linked-etag"] == f'"{hashlib.sha256(content).hexdigest()}"'
    assert urlsplit(headers["location"]).netloc != urlsplit(hub.url).netloc
    assert ask(headers["location"])[2] == content
    hub.expire_links()
    assert ask(headers["location"])[0] == 403
    assert ask(f"{hub.url}/datasets/{FINEWEB}/resolve/main/README.md", Authorization="Bearer hf_owner")[0] == 200


def test_a_moved_branch_leaves_the_old_commit_readable(hub: Hub, small: corpora.Corpora, tmp_path: Path) -> None:
    old = hub.commit(STORIES)
    changed = corpora.changed(small.root / STORIES, tmp_path / "new", {"README.md": b"new", "data/more.txt": b"1"})
    new = hub.publish(STORIES, changed)
    assert new == hub.commit(STORIES) != old
    address = f"{hub.url}/datasets/{STORIES}/resolve"
    assert ask(f"{address}/main/README.md")[2] == ask(f"{address}/{new}/README.md")[2] == b"new"
    assert ask(f"{address}/{old}/README.md")[2] == (small.root / STORIES / "README.md").read_bytes()
    assert [ask(f"{address}/{commit}/data/more.txt")[0] for commit in (old, new)] == [404, 200]


@pytest.mark.parametrize(
    ("asked", "begin", "end"),
    [("0-0", 0, 1), ("10-19", 10, 20), ("30-", 30, None), ("-7", -7, None), ("9-99999", 9, None)],
)
def test_ranges(hub: Hub, small: corpora.Corpora, asked: str, begin: int, end: int | None) -> None:
    content = (small.root / FINEMATH / "README.md").read_bytes()
    address = f"{hub.url}/datasets/{FINEMATH}/resolve/main/README.md"
    status, headers, body = ask(address, Range=f"bytes={asked}")
    assert (status, body) == (206, content[begin:end])
    assert headers["content-range"].endswith(f"/{len(content)}")
    status, headers, _ = ask(address, Range=f"bytes={len(content)}-")
    assert (status, headers["content-range"]) == (416, f"bytes */{len(content)}")
    assert ask(address, "HEAD", Range=f"bytes={asked}")[2] == b""


# --- The bucket ---


def test_every_object_of_the_tar_is_served_under_its_sha1(bucket: Bucket, small: corpora.Corpora) -> None:
    rows = pq.read_table(small.root / SMOLLM / "python-edu")
    with tarfile.open(small.objects) as tar:
        keys = [member.name.rpartition("/")[2] for member in tar]
    assert set(rows["blob_id"].to_pylist()) == set(keys)
    for key in keys[::10]:
        status, headers, body = ask(f"{bucket.url}/softwareheritage/content/{key}")
        assert (status, hashlib.sha1(gzip.decompress(body)).hexdigest()) == (200, key)
        assert "content-encoding" not in headers
        assert ask(f"{bucket.url}/content/{key}", "HEAD")[1]["content-length"] == str(len(body))
    status, headers, body = ask(f"{bucket.url}/content/{'0' * 40}")
    assert (status, headers["content-type"], b"<Code>NoSuchKey</Code>" in body) == (404, "application/xml", True)
    assert ask(f"{bucket.url}/softwareheritage?list-type=2")[0] == 403
    assert bucket.requests[0].status == 200


def test_objects_can_be_other_than_they_should(bucket: Bucket) -> None:
    key = bucket.put(b"some text")
    address = f"{bucket.url}/content/{key}"
    assert gzip.decompress(ask(address)[2]) == b"some text"
    bucket.faults.on(key, keep_bytes=12, times=1)
    status, headers, body = ask(address)
    assert (status, headers["content-length"], len(body)) == (200, "12", 12)
    with pytest.raises(EOFError):
        gzip.decompress(body)
    assert gzip.decompress(ask(address)[2]) == b"some text"
    bucket.faults.on(key, body=b"not gzip", headers={"ETag": '"other"'}, times=2)
    assert ask(address)[2] == b"not gzip"
    assert (ask(address, Range="bytes=4-")[0], bucket.requests[-1].body_bytes) == (206, 4)
    bucket.faults.on(key, status=500, times=1)
    assert ask(address)[0] == 500
    bucket.put(b"other bytes", key=key)
    assert gzip.decompress(ask(address)[2]) == b"other bytes"
    bucket.remove(key)
    assert ask(address)[0] == 404


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


def test_a_fault_in_the_server_itself_is_a_500(bucket: Bucket, capfd: pytest.CaptureFixture[str]) -> None:
    bucket.objects = None  # type: ignore[assignment]
    assert ask(f"{bucket.url}/content/{'f' * 40}")[0] == 500
    assert "AttributeError" in capfd.readouterr().err


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
