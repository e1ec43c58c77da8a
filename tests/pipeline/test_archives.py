"""Members of archives and records of WARC as documents, as other readers have them; what is not read is counted."""

# pyright: basic
from __future__ import annotations

import gzip
import struct
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pipeline.sources import files
from pipeline.sources.formats.archives import zip as zip_format
from shards.errors import MissingExtraError
from tests.support.archives import (
    carried_of,
    counts_of,
    http_response,
    special,
    warc_record,
    write_tar,
    write_zip,
)
from tests.support.builds import error_of, list_spans_of


def texts_of(rows: list[tuple[str, int, Any]]) -> list[bytes]:
    return [text if isinstance(text, bytes) else text.encode() for _, _, text in rows]


TREE = [
    special("data/", tarfile.DIRTYPE),
    ("data/one.txt", b"the first document"),
    ("data/" + "long/" * 40 + "two.md", "zwei, é\n".encode()),
    ("data/empty.txt", b""),
    ("./data/three.py", b"x = 3\n" * 2000),
    ("data/one.txt", b"the first name again"),
    ("data/ü.txt", b"a name that is not ASCII"),
]


@pytest.mark.parametrize("format_", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_equals_tarfile(format_: int, tmp_path: Path, source: Any, read_all: Any) -> None:
    rows = read_all(source(write_tar(tmp_path / "a.tar", TREE, format_=format_)))
    with tarfile.open(tmp_path / "a.tar") as archive:
        found = [(row, archive.extractfile(info)) for row, info in enumerate(archive) if info.isreg()]
        expected = [(row, file.read()) for row, file in found if file]
    assert [(row, text) for _, row, text in rows] == expected
    assert len(rows) == 6


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_equals_zipfile_and_is_cut_into_ranges_of_members(
    method: int, tmp_path: Path, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_format, "SPAN_MEMBERS", 4)
    entries = [(f"d/{number}.txt", f"text {number} ".encode() * 500 * (number % 3)) for number in range(20)]
    path = write_zip(tmp_path / "a.zip", [("d/", b""), *entries, ("d/1.txt", b"again"), ("ü.txt", b"u")], method)
    recipe = source(path)
    (file,) = files.list_files(recipe)
    spans = files.list_spans(recipe, file, 20_000)
    assert [span.part for span in spans][:2] == ["m0-4", "m4-8"]
    assert spans[-1].stop == sum(span.rows or 0 for span in spans) == 23
    found = [
        (span.start + row, text)
        for span in spans
        for batch in files.read(recipe, span)
        for row, text in zip(batch.rows.tolist(), batch.text.to_pylist(), strict=True)
    ]
    with zipfile.ZipFile(path) as archive:
        expected = [(row, archive.read(info)) for row, info in enumerate(archive.infolist()) if not info.is_dir()]
    assert found == expected


def test_zip64_and_what_stands_before_an_archive(tmp_path: Path, source: Any, read_all: Any) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        with archive.open("large.txt", "w", force_zip64=True) as file:
            file.write(b"in 64 bits")
        archive.writestr("b.txt", b"second")
    assert texts_of(read_all(source(tmp_path / "a.zip"))) == [b"in 64 bits", b"second"]
    (tmp_path / "b.zip").write_bytes(b"#!/bin/sh\n" + (tmp_path / "a.zip").read_bytes())
    assert texts_of(read_all(source(tmp_path / "b.zip"))) == [b"in 64 bits", b"second"]
    data = bytearray((tmp_path / "a.zip").read_bytes())
    # The end of an archive of more than 65,535 members: its numbers stand in a record of 64 bits.
    at = data.rfind(b"PK\5\6")
    _, _, _, _, count, size, offset, _ = struct.unpack_from("<4sHHHHIIH", data, at)
    record = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, at, 1)
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    (tmp_path / "c.zip").write_bytes(bytes(data[:at]) + record + locator + end)
    with zipfile.ZipFile(tmp_path / "c.zip") as archive:
        assert archive.namelist() == ["large.txt", "b.txt"]
    assert texts_of(read_all(source(tmp_path / "c.zip"))) == [b"in 64 bits", b"second"]


def test_what_is_not_a_regular_member_is_counted(tmp_path: Path, source: Any) -> None:
    sparse = tarfile.TarInfo("sparse.txt")
    sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
    kinds = [
        ("a.txt", b"read"),
        special("folder", tarfile.DIRTYPE),
        special("soft", tarfile.SYMTYPE, "/etc/passwd"),
        special("hard", tarfile.LNKTYPE, "a.txt"),
        special("pipe", tarfile.FIFOTYPE),
        special("disk", tarfile.BLKTYPE),
        sparse,
        special("old sparse", tarfile.GNUTYPE_SPARSE),
        ("b.txt", b"also read"),
        ("c.md", b"not chosen"),
        ("d/LICENSE.txt", b"not chosen either"),
    ]
    recipe = source(
        write_tar(tmp_path / "a.tar", kinds),
        members=["*.txt", "soft", "hard", "pipe", "disk", "*sparse*", "!*/LICENSE*"],
    )
    assert counts_of(recipe) == {
        "member is a link": 2,
        "member is a device": 2,
        "member is a sparse file": 2,
        "not one of `members`": 2,
    }
    link = zipfile.ZipInfo("soft")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    recipe = source(write_zip(tmp_path / "a.zip", [(link, b"/etc/passwd"), ("a.txt", b"x")]))
    assert counts_of(recipe) == {"member is a link": 1}


def test_names_that_are_not_utf_8_and_carried_names(tmp_path: Path, source: Any) -> None:
    write_tar(tmp_path / "a.tar", [("caf\udce9.txt", b"latin-1 name"), ("b.txt", b"x")], format_=tarfile.GNU_FORMAT)
    assert carried_of(source(tmp_path / "a.tar", carry=["member"])) == [{"member": "caf\\xe9.txt"}, {"member": "b.txt"}]
    write_zip(tmp_path / "a.zip", [("日本.txt", b"x"), ("b.md", b"y")])
    recipe = source(tmp_path / "a.zip", carry=["member"], keep={"member": "!= 'b.md'"})
    assert carried_of(recipe) == [{"member": "日本.txt"}]
    assert "there are text, member" in error_of(source(tmp_path / "a.zip", carry=["name"]), carried_of)


SAMPLES = [
    ("000.jpg", bytes(range(256))),
    ("000.txt", b"a caption"),
    ("000.json", b'{\n  "url": "https://a", "score": 0.5\n}'),
    ("001.json", b'{"url": null, "text": "from the record"}'),
    ("002.json", b'{"url": "https://c", "text": "replaced by the member"}'),
    ("002.txt", b"the member"),
    ("003.cls", b"7"),
    ("d/004.txt", b"no record"),
]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_webdataset(suffix: str, tmp_path: Path, source: Any, read_all: Any) -> None:
    path = write_tar(tmp_path / f"a.tar{suffix}", SAMPLES, "w:gz" if suffix else "w")
    recipe = source(path, carry=["url", "__key__", "score"])
    rows = read_all(recipe)
    assert texts_of(rows) == [b"a caption", b"from the record", b"the member", b"no record"]
    assert [row for _, row, _ in rows] == [0, 1, 2, 4]
    assert {span.format for span in list_spans_of(recipe)} == {"webdataset"}
    assert carried_of(recipe) == [
        {"url": "https://a", "__key__": "000", "score": 0.5},
        {"url": None, "__key__": "001", "score": None},
        {"url": "https://c", "__key__": "002", "score": None},
        {"url": None, "__key__": "d/004", "score": None},
    ]
    assert counts_of(recipe) == {"member is neither .txt nor .json of a sample": 2}
    kept = source(path, keep={"url": "== 'https://c'"})
    assert texts_of(read_all(kept)) == [b"the member"]
    assert counts_of(kept)["url is null"] == 2
    as_tar = source(path, format="tar", members=["*.txt", "*.json"])
    assert len(read_all(as_tar)) == 6


def test_a_webdataset_without_its_column_says_what_it_is_read_as(tmp_path: Path, source: Any, read_all: Any) -> None:
    path = write_tar(tmp_path / "a.tar", [("package.json", b'{"name": "x"}'), ("index.js", b"1;\n")])
    message = error_of(source(path), read_all)
    assert "no column 'text' in its first records; there are __key__, name" in message
    assert 'format = "tar"' in message
    assert len(read_all(source(path, format="tar"))) == 2
    assert texts_of(read_all(source(path, text="name"))) == [b"x"]


def test_archives_by_their_first_bytes(tmp_path: Path, source: Any, read_all: Any) -> None:
    whole = write_tar(tmp_path / "a", [("a.txt", b"text"), ("b.txt", b"more")]).read_bytes()
    (tmp_path / "b.tgz").write_bytes(gzip.compress(whole))
    (tmp_path / "c.crate").write_bytes(whole)
    (tmp_path / "d").write_bytes(warc_record(b"a record"))
    assert [span.format for span in list_spans_of(source(tmp_path / "*"))] == ["tar", "tar", "tar", "warc"]
    assert len(read_all(source(tmp_path / "*"))) == 7
    write_zip(tmp_path / "e.docx", [("a.txt", b"x")])
    assert "holds a zip archive, not text" in error_of(source(tmp_path / "e.docx"), read_all)


INFO = warc_record(b"software: x\r\n", "warcinfo", None, Content_Type="application/warc-fields")


def write_warc(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(b"".join(map(gzip.compress, records)) if path.suffix == ".gz" else b"".join(records))
    return path


def test_columns_of_records(tmp_path: Path, source: Any, read_all: Any) -> None:
    german = warc_record(b"deutsch", url="https://de.example/ü", WARC_Identified_Content_Language="deu,eng")
    path = write_warc(tmp_path / "a.wet.gz", [INFO, warc_record(b"text", url="https://example.org/0"), german])
    assert carried_of(source(path, carry=["url", "date", "languages"])) == [
        {"url": "https://example.org/0", "date": "2024-05-01T12:00:00Z", "languages": None},
        {"url": "https://de.example/ü", "date": "2024-05-01T12:00:00Z", "languages": "deu,eng"},
    ]
    kept = source(path, keep={"languages": "== 'deu,eng'"})
    assert texts_of(read_all(kept)) == [b"deutsch"]
    assert counts_of(kept) == {"languages is null": 1, "warcinfo record": 1}
    assert "there are text, url, date, id, languages" in error_of(source(path, carry=["uri"]), read_all)


def test_records_that_are_not_text_are_counted(tmp_path: Path, source: Any, read_all: Any) -> None:
    records = [
        INFO,
        warc_record(b"GET / HTTP/1.1\r\n\r\n", "request", Content_Type="application/http; msgtype=request"),
        http_response(b"<html>page</html>", "text/html; charset=utf-8"),
        http_response(b"a plain page", "text/plain; charset=utf-8"),
        http_response(b"7\r\nchunked\r\n0\r\n\r\n", "Text/Plain", "Transfer-Encoding: chunked"),
        http_response(gzip.compress(b"compressed"), "text/plain", "Content-Encoding: gzip"),
        warc_record(b"a resource", "resource"),
        warc_record(b"{}", "resource", Content_Type="application/json"),
        warc_record(b"{}", "metadata", Content_Type="application/json"),
        warc_record(b"?", "something"),
    ]
    recipe = source(write_warc(tmp_path / "a.warc.gz", records))
    assert texts_of(read_all(recipe)) == [b"a plain page", b"chunked", b"compressed", b"a resource"]
    assert counts_of(recipe) == {
        "warcinfo record": 1,
        "request record": 1,
        "metadata record": 1,
        "unknown record": 1,
        "response record that is not text/plain": 1,
        "resource record that is not text/plain": 1,
    }


def test_without_fastwarc_the_command_that_installs_it_is_named(
    tmp_path: Path, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = source(write_warc(tmp_path / "a.wet", [INFO]))
    monkeypatch.setitem(sys.modules, "fastwarc.warc", None)
    with pytest.raises(
        MissingExtraError, match=r"'fastwarc' is not installed. Install it: \S+ -m pip install .*warc\S+$"
    ):
        list_spans_of(recipe)
