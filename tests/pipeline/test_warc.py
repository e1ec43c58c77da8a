"""WARC and WET: text records as documents, the others counted; files that are damaged or cut short refused."""

# pyright: basic
from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.clean.provenance import read_documents_again
from pipeline.sources.base import MALFORMED, SourceError
from pipeline.sources.formats.archives import warc
from shards.errors import MissingExtraError
from tests.support.archives import carried_of, counts_of, warc_record
from tests.support.builds import list_spans_of

INFO = warc_record(b"software: x\r\n", "warcinfo", None, Content_Type="application/warc-fields")
TEXTS = ["the first page\n", "zweite Seite, é\r\n\r\nWARC/1.0 is only text here", "", "a" * 5000]
PAGES = [warc_record(text.encode(), url=f"https://example.org/{n}") for n, text in enumerate(TEXTS)]


def http(body: bytes, content_type: str = "text/plain", *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", *headers, "", ""]
    return warc_record(
        "\r\n".join(lines).encode() + body, "response", Content_Type="application/http; msgtype=response"
    )


def write(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(b"".join(map(gzip.compress, records)) if path.suffix == ".gz" else b"".join(records))
    return path


def texts_of(rows: list[tuple[str, int, Any]]) -> list[str]:
    return [text.decode() for _, _, text in rows]


def error_of(recipe: Any, read_all: Any) -> str:
    with pytest.raises(SourceError) as caught:
        read_all(recipe)
    return str(caught.value)


@pytest.mark.parametrize("name", ["a.warc.wet.gz", "a.warc", "a.wet", "a"])
def test_wet_files(name: str, tmp_path: Path, source: Any, read_all: Any) -> None:
    recipe = source(write(tmp_path / name, [INFO, *PAGES]))
    rows = read_all(recipe)
    assert texts_of(rows) == TEXTS
    assert [row for _, row, _ in rows] == [1, 2, 3, 4]
    assert counts_of(recipe) == {"warcinfo record": 1}
    for label, row, text in rows:
        assert read_documents_again({**recipe.model_dump(mode="json"), "folder": "/"}, label, [row]) == [text]


def test_columns_of_records(tmp_path: Path, source: Any, read_all: Any) -> None:
    german = warc_record(b"deutsch", url="https://de.example/ü", WARC_Identified_Content_Language="deu,eng")
    path = write(tmp_path / "a.wet.gz", [INFO, PAGES[0], german])
    assert carried_of(source(path, carry=["url", "date", "languages"])) == [
        {"url": "https://example.org/0", "date": "2024-05-01T12:00:00Z", "languages": None},
        {"url": "https://de.example/ü", "date": "2024-05-01T12:00:00Z", "languages": "deu,eng"},
    ]
    kept = source(path, keep={"languages": "== 'deu,eng'"})
    assert texts_of(read_all(kept)) == ["deutsch"]
    assert counts_of(kept) == {"languages is null": 1, "warcinfo record": 1}
    assert "there are text, url, date, id, languages" in error_of(source(path, carry=["uri"]), read_all)


def test_records_that_are_not_text_are_counted(tmp_path: Path, source: Any, read_all: Any) -> None:
    records = [
        INFO,
        warc_record(b"GET / HTTP/1.1\r\n\r\n", "request", Content_Type="application/http; msgtype=request"),
        http(b"<html>page</html>", "text/html; charset=utf-8"),
        http(b"a plain page", "text/plain; charset=utf-8"),
        http(b"7\r\nchunked\r\n0\r\n\r\n", "Text/Plain", "Transfer-Encoding: chunked"),
        http(gzip.compress(b"compressed"), "text/plain", "Content-Encoding: gzip"),
        warc_record(b"a resource", "resource"),
        warc_record(b"{}", "resource", Content_Type="application/json"),
        warc_record(b"{}", "metadata", Content_Type="application/json"),
        warc_record(b"?", "something"),
    ]
    recipe = source(write(tmp_path / "a.warc.gz", records))
    assert texts_of(read_all(recipe)) == ["a plain page", "chunked", "compressed", "a resource"]
    assert counts_of(recipe) == {
        "warcinfo record": 1,
        "request record": 1,
        "metadata record": 1,
        "unknown record": 1,
        "response record that is not text/plain": 1,
        "resource record that is not text/plain": 1,
    }


MALFORMED_RECORDS = {
    "no URL": (warc_record(b"text", url=None), "record 1, without a URL: has no WARC-Target-URI"),
    "large": (warc_record(b"x" * 9000), "is 9,000 bytes long; a document has at most 8,000"),
    "gzip bomb": (
        http(gzip.compress(bytes(10**6)), "text/plain", "Content-Encoding: gzip"),
        "a body of more than 8,000",
    ),
    "no gzip": (http(b"no gzip", "text/plain", "Content-Encoding: gzip"), "its HTTP response cannot be decoded"),
}


@pytest.mark.parametrize("case", MALFORMED_RECORDS)
def test_malformed_records(
    case: str, tmp_path: Path, source: Any, read_all: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warc, "MAX_BYTES", 8000)
    record, words = MALFORMED_RECORDS[case]
    path = write(tmp_path / "a.warc.gz", [PAGES[0], record, PAGES[1]])
    message = error_of(source(path), read_all)
    assert "a.warc.gz: record 1, " in message
    assert words in message
    assert texts_of(read_all(source(path, max_malformed=0.5))) == TEXTS[:2]
    assert counts_of(source(path, max_malformed=0.5)) == {MALFORMED: 1}


def members(*records: bytes) -> bytes:
    return b"".join(map(gzip.compress, records))


DAMAGED = gzip.compress(PAGES[3])[:100] + b"\0\0\0" + gzip.compress(PAGES[3])[103:]
BROKEN = {
    "too long": (b"".join([PAGES[0], warc_record(b"x", Content_Length="100"), PAGES[1]]), "at the end of record 1"),
    "too short": (b"".join([PAGES[0], warc_record(b"x" * 99, Content_Length="5"), PAGES[1]]), "at the end of record 1"),
    "negative": (b"".join([PAGES[0], warc_record(b"x", Content_Length="-1")]), "its Content-Length is '-1'"),
    "no length": (b"".join([PAGES[0], warc_record(b"x", Content_Length=None)]), "its Content-Length is ''"),
    "10 TB": (
        b"".join([PAGES[0], warc_record(b"x", Content_Length="9999999999999")]),
        "of the 9,999,999,999,999 bytes",
    ),
    "cut in a text": (b"".join([PAGES[0], PAGES[3]])[:-1000], "bytes that its Content-Length states"),
    "cut in a header": (b"".join([PAGES[0], PAGES[3]])[:-5020], "Content-Length is ''"),
    "cut in what is not read": (http(b"<p>" * 100, "text/html")[:-50], "bytes that its Content-Length states"),
    "no WARC": (b"some text\r\n\r\nand more", "expected a WARC record at its start"),
    "text between": (PAGES[0] + b"some text\r\n\r\n" + PAGES[1], "expected a WARC record at the end of record 0"),
}
BROKEN_GZIP = {
    "half a member": (members(*PAGES)[:-30], "Truncated"),
    "its end lost": (members(*PAGES)[:-4], "Truncated"),
    "a damaged member": (members(PAGES[0]) + DAMAGED + members(PAGES[1]), "zlib inflate failed"),
    "text after a member": (members(PAGES[0]) + b"text", "zlib inflate failed"),
}


@pytest.mark.parametrize("case", [*BROKEN, *BROKEN_GZIP])
def test_files_that_are_damaged_or_cut_short(case: str, tmp_path: Path, source: Any, read_all: Any) -> None:
    data, words = {**BROKEN, **BROKEN_GZIP}[case]
    name = "a.warc.gz" if case in BROKEN_GZIP else "a.warc"
    (tmp_path / name).write_bytes(data)
    for tolerance in (0.0, 1.0):
        message = error_of(source(tmp_path / name, max_malformed=tolerance), read_all)
        assert f"{name}: " in message
        assert words in message
        assert "restore it" in message or "Restore the file" in message


def test_an_empty_file_has_no_span(tmp_path: Path, source: Any) -> None:
    assert list_spans_of(source(write(tmp_path / "a.warc.gz", [b""]))) == []


def test_without_fastwarc_the_command_that_installs_it_is_named(
    tmp_path: Path, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = source(write(tmp_path / "a.wet", PAGES))
    monkeypatch.setitem(sys.modules, "fastwarc.warc", None)
    with pytest.raises(
        MissingExtraError, match=r"'fastwarc' is not installed. Install it: \S+ -m pip install .*warc\S+$"
    ):
        list_spans_of(recipe)
