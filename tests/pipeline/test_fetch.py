"""Fetched content in builds: every file used or counted, nothing asked for twice, the same bytes whatever fails."""

import gzip
import hashlib
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.engine.receipts import write_receipt
from pipeline.engine.tasks import Report
from pipeline.sources.base import SourceError, Span, TextBatch, make_units
from pipeline.sources.files import read_span
from pipeline.sources.formats.encodings import is_utf8
from pipeline.sources.software_heritage import archive, fetch, fetched_documents
from tests.support.builds import build_here, digests, read_json, wait_until
from tests.support.damage import flip
from tests.support.reading import files_source, list_spans_of, rows_of, texts_of
from tests.support.recipes import source, to_lines, write_recipe
from tests.support.servers import corpora as stand_ins
from tests.support.servers.bucket import Bucket
from tests.support.started import Started

pytestmark = pytest.mark.long


class Archive:
    """A folder of metadata and the objects that it names."""

    def __init__(self, folder: Path, objects: dict[str, bytes], table: pa.Table):
        folder.mkdir(exist_ok=True)
        pq.write_table(table, folder / "part-0.parquet", row_group_size=-(-len(table) // 2))
        self.folder, self.objects = folder, objects
        self.ids: list[str] = table["blob_id"].to_pylist()
        self.keys = list(dict.fromkeys(self.ids))


def content_of(server: Bucket, key: str) -> bytes:
    return gzip.decompress(server.objects[key])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """About 120 files of the standard library; one is empty, one is Latin-1, one is named by two rows."""
    folder = tmp_path_factory.mktemp("small")
    table, objects = stand_ins.small_code()
    return Archive(folder / "rows", objects, table)


@pytest.fixture
def server(small: Archive) -> Iterator[Bucket]:
    with Bucket(small.objects) as bucket:
        yield bucket


def flags(server: Bucket, *options: str) -> list[str]:
    return ["--timeout", "2", "--content-endpoint", f"{server.url}/content", *options]


def build(recipe: Path, out: Path, server: Bucket, *options: str, expect: int = 0) -> dict[str, Any]:
    """Run a build; return its JSON result, and its drops of other reasons than those of every source."""
    result = build_here(recipe, out, *flags(server, *options), expect=expect)
    drops = dict(result["sources"][0]["dropped"]) if not expect else {}
    return result | {"lost": {name: drops[name] for name in drops if name not in ("duplicate", "text is empty")}}


def write(folder: Path, rows: Path, **keys: Any) -> Path:
    code = source("code", rows / "*.parquet", content="software-heritage", **keys)
    sizes = {"tokenizer": {"vocab_size": 600, "sample_bytes": "300 KB"}, "shards": {"tokens": 2_000_000}}
    return write_recipe(folder / "recipe.toml", code, seed=5, **sizes)


@pytest.fixture(scope="module")
def undisturbed(small: Archive, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A build of the whole set by a network without fault."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Bucket(small.objects) as server:
        result = build(write(folder, small.folder), folder / "set", server)
        return result | {"requests": len(server.requests)}, folder / "set"


# --- All of it ---


def test_every_file_is_fetched_once_and_used(small: Archive, server: Bucket, undisturbed: tuple[dict[str, Any], Path]):
    result, out = undisturbed
    assert (result["ran"]["fetch"], result["requests"]) == (1, len(small.keys))
    assert result["lost"] == {archive.NOT_UTF8: 1}
    texts: list[bytes] = []
    for path in sorted((out.with_name("set.work") / "fetch").glob("*/*/*.parquet")):
        texts += [text.as_py().encode() for batch in fetched_documents.read_file(path) for text in batch.text]
    expected = [content_of(server, key) for key in small.ids]
    assert sorted(texts) == sorted(text for text in expected if is_utf8(text))
    assert not list((out.with_name("set.work") / "fetch").glob("*.journal"))


def test_killed_half_way_it_asks_for_the_rest_only(
    small: Archive, server: Bucket, undisturbed: tuple[dict[str, Any], Path], tmp_path: Path
):
    recipe, out = write(tmp_path, small.folder), tmp_path / "set"
    total = undisturbed[0]["requests"]
    server.latency_s = 0.02
    options = ("--connections", "4")
    for part in (0.3, 0.6):
        started = Started(recipe, out, "--workers", "2", *flags(server, *options))
        wait_until(lambda: len(server.requests) >= part * total, "half of the requests", pause_s=0.01)  # noqa: B023
        os.killpg(started.process.pid, signal.SIGKILL)
        assert started.wait()[0] == -signal.SIGKILL
    server.latency_s = 0.0
    assert build(recipe, out, server, *options)["ran"]["fetch"] >= 1
    asked = [record.path for record in server.requests]
    in_flight = 2 * 2 * 2 * 4  # kills, workers, connections and as many answers not yet taken
    assert total <= len(asked) <= total + in_flight
    assert digests(out) == digests(undisturbed[1])
    before = len(asked)
    assert build(recipe, out, server)["tasks_run"] == 0
    assert len(server.requests) == before


# --- What cannot be had ---


def latin1_content(server: Bucket, small: Archive) -> bytes:
    (content,) = [content for key in small.keys if not is_utf8(content := content_of(server, key))]
    return content


def test_every_file_that_cannot_be_used_is_counted_with_its_reason(small: Archive, server: Bucket, tmp_path: Path):
    """Of the rows, one each is missing, altered, truncated, a page, Latin-1; three are no SHA-1."""
    keys = [key for key in small.keys if len(content_of(server, key)) > 1000]
    latin1 = hashlib.sha1(latin1_content(server, small)).hexdigest()
    server.remove(keys[3])
    server.faults.on(keys[4], body=gzip.compress(b"another file"))
    server.faults.on(keys[5], body=gzip.compress(content_of(server, keys[5]))[:100])
    server.faults.on(keys[6], body=b"<html>log in first</html>")
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"blob_id": [*small.ids, None, "", "no SHA-1"]}), tmp_path / "rows/part.parquet")
    reasons = {3: archive.MISSING, 4: archive.DIFFERS, 5: archive.NOT_GZIP, 6: archive.NOT_GZIP}
    expected = Counter({archive.NOT_UTF8: small.ids.count(latin1), archive.NOT_SHA1: 3})
    for index, reason in reasons.items():
        expected[reason] += small.ids.count(keys[index])
    result = build(write(tmp_path, tmp_path / "rows", max_missing=0.1), tmp_path / "set", server)
    assert result["lost"] == expected
    manifest = read_json(tmp_path / "set/manifest.json")
    assert manifest["sources"][0]["dropped"].items() >= expected.items()


def test_too_many_missing_stop_the_build_and_are_asked_for_again(small: Archive, server: Bucket, tmp_path: Path):
    recipe, out = write(tmp_path, small.folder), tmp_path / "set"
    gone = small.keys[10:20]
    bodies = {key: server.objects[key] for key in gone}
    for key in gone:
        server.remove(key)
    said = build(recipe, out, server, expect=2)["stderr"]
    rows = len(small.ids)
    found = f"source 'code': 11 of {rows:,} files ({11 / rows:.2%}) cannot be fetched from {server.url}/content"
    for words in (found, "max_missing = 0.02", "1 content not UTF-8", "10 content missing", "or set max_missing = "):
        assert words in said
    assert not out.exists()
    # Again: only what could not be had (and used) is asked for.
    server.forget()
    build(recipe, out, server, expect=2)
    assert len(server.requests) == 11
    # What was refused for its number is taken with a higher bound.
    raised = build(recipe, out, server, "--set", "sources.code.max_missing=0.1")
    assert raised["lost"] == {archive.MISSING: 10, archive.NOT_UTF8: 1}
    # The archive has them after all: a build that refuses their number asks again.
    build(recipe, out, server, expect=2)
    server.forget()
    server.objects |= bodies
    mended = build(recipe, out, server)
    assert mended["lost"] == {archive.NOT_UTF8: 1}
    assert len(server.requests) == 11
    assert mended["ran"]["encode"] == 1


def test_another_archive_is_found_out_early(small: Archive, server: Bucket, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(fetch, "_HOPELESS", 20)
    server.faults.on("/content/", status=404)
    run = Run(small, server, tmp_path, monkeypatch)
    with pytest.raises(SourceError, match=r"gave none of the first 20 files asked for; the last one: content missing"):
        run()
    assert len(server.requests) < 60
    assert Run(small, server, tmp_path / "again", monkeypatch, max_missing=1)().dropped.keys() == {archive.MISSING}


def test_fetched_documents_that_were_damaged_are_fetched_again(
    small: Archive, server: Bucket, undisturbed: tuple[dict[str, Any], Path], tmp_path: Path
):
    recipe, out = write(tmp_path, small.folder), tmp_path / "set"
    build(recipe, out, server)
    for seed, place in enumerate((None, -1, -300)):  # anywhere, and in the footer
        # The folders of damaged attempts stay while the process that made them lives.
        path = max((tmp_path / "set.work").glob("fetch/*/*/*.parquet"), key=os.path.getmtime)
        flip(path, place, seed)
        for name in ("set", "set.work/encode"):
            shutil.rmtree(tmp_path / name)
        said = build(recipe, out, server)["stderr"]
        assert digests(out) == digests(undisturbed[1])
        assert f"{path}: damaged" in said
        assert "rebuilding it" in said


# --- Single tasks ---


class Run:
    """One fetch task in this process."""

    def __init__(self, rows: Archive | Path, server: Bucket, work: Path, monkeypatch: Any, **keys: Any):
        paths = sorted((rows.folder if isinstance(rows, Archive) else rows).iterdir())
        network = {"content_endpoint": f"{server.url}/content", "content_connections": 8}
        monkeypatch.setenv("TOKENMILL_NETWORK", json.dumps(network))
        self.source = files_source(*paths, name="code", content="software-heritage", **keys)
        (self.unit,) = make_units(0, list_spans_of(self.source))
        self.work = work
        self.counts: list[tuple[int, int]] = []
        work.mkdir(exist_ok=True)

    def __call__(self) -> fetched_documents.FetchResult:
        task = fetch.make_fetch_task(self.unit, self.source, self.work)
        written, self.folder = self.work / f".{task.digest}", self.work / task.digest / "attempt"
        written.mkdir()
        result = fetch.fetch_unit(written, task.payload, Report(lambda *counts: self.counts.append(counts)))
        write_receipt(written, result)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(exist_ok=True)
        written.rename(self.folder)
        return result

    def read(self, result: fetched_documents.FetchResult) -> tuple[Span, list[TextBatch]]:
        (span,) = fetched_documents.local_unit(self.unit, self.folder, result).spans
        return span, list(read_span(self.source, span))


def test_documents_keep_their_rows_and_provenance_and_rejected_rows_are_not_asked_for(
    small: Archive, server: Bucket, tmp_path: Path, monkeypatch: Any
):
    run = Run(small, server, tmp_path, monkeypatch, keep={"score": ">= 4.2"})
    span, batches = run.read(run())
    scores = pq.read_table(small.folder)["score"].to_pylist()
    named = {key for key, score in zip(small.ids, scores, strict=True) if score >= 4.2}
    assert asked(server) == sorted(named)
    wanted = [
        (row, text)
        for row, (key, score) in enumerate(zip(small.ids, scores, strict=True))
        if score >= 4.2 and is_utf8(text := content_of(server, key))
    ]
    rows = rows_of(batches)
    assert list(zip(rows, map(str.encode, texts_of(batches)), strict=True)) == wanted
    rejected = sum((Counter(batch.rejected) for batch in batches), Counter[str]())
    assert rejected["not score >= 4.2"] == sum(score < 4.2 for score in scores)
    assert sum(rejected.values()) + len(rows) == len(small.ids)
    (before,) = run.unit.spans
    assert span.label("x") == before.label("x")
    assert (span.rows, span.text_bytes) == (len(wanted), sum(len(text) for _, text in wanted))
    assert run.counts[-1] == (len(small.ids), len(server.requests))
    # Another predicate: what there is of the same rows is used again.
    server.forget()
    assert Run(small, server, tmp_path, monkeypatch)().rows == len(small.ids)
    lost = {hashlib.sha1(latin1_content(server, small)).hexdigest()} & named
    assert asked(server) == sorted({*small.keys} - named | lost)


def asked(server: Bucket) -> list[str]:
    return sorted(record.path.rpartition("/")[2] for record in server.requests)


def test_json_lines_and_lists_name_files_too(small: Archive, server: Bucket, tmp_path: Path, monkeypatch: Any):
    keys = small.ids[:5]
    contents = [content_of(server, key).decode() for key in keys]
    for name, text, more in (
        ("a.jsonl", to_lines({"file": {"sha1": key}} for key in keys), {"blob_id": "file.sha1"}),
        ("b.txt", "".join(f"{key}\n" for key in keys), {"separator": "\n"}),
    ):
        rows = tmp_path / name.replace(".", "-")
        rows.mkdir()
        (rows / name).write_text(text)
        run = Run(rows, server, tmp_path / f"work-{name}", monkeypatch, **more)
        assert texts_of(run.read(run())[1]) == contents
