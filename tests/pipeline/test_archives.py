"""Members of tar and zip archives as documents: equal to an independent reader's, bounded, and nothing lost."""

# pyright: basic
from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from pipeline.clean.provenance import read_documents_again
from pipeline.sources import files
from pipeline.sources.base import MALFORMED, SourceError
from pipeline.sources.formats.archives import members
from pipeline.sources.formats.archives import zip as zip_format
from tests.support.archives import carried_of, counts_of, special, warc_record, write_tar, write_zip
from tests.support.builds import list_spans_of

GNU, PAX, USTAR = tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT


def error_of(recipe: Any, read_all: Any) -> str:
    with pytest.raises(SourceError) as caught:
        read_all(recipe)
    return str(caught.value)


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
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


def members_by_tarfile(path: Path) -> list[tuple[int, bytes]]:
    with tarfile.open(path) as archive:
        found = [(row, archive.extractfile(info)) for row, info in enumerate(archive) if info.isreg()]
        return [(row, file.read()) for row, file in found if file]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("format_", [GNU, PAX])
def test_tar_equals_tarfile(suffix: str, format_: int, tmp_path: Path, source: Any, read_all: Any) -> None:
    plain = write_tar(tmp_path / "plain", TREE, format_=format_)
    (tmp_path / f"a.tar{suffix}").write_bytes(COMPRESS[suffix](plain.read_bytes()))
    rows = read_all(source(tmp_path / f"a.tar{suffix}"))
    assert [(row, text) for _, row, text in rows] == members_by_tarfile(plain)
    assert len(rows) == 6


def test_a_cut_tar_has_the_same_members(tmp_path: Path, source: Any) -> None:
    texts = [f"document {number} ".encode() * (number % 200) for number in range(300)]
    recipe = source(write_tar(tmp_path / "a.tar", [(f"d/{i}.txt", text) for i, text in enumerate(texts)]))
    (file,) = files.list_files(recipe)
    spans = files.list_spans(recipe, file, 100_000)
    assert len(spans) > 3
    assert [spans[0].start, *(span.stop for span in spans)] == [*(span.start for span in spans), file.stored_bytes]
    found = [text for span in spans for batch in files.read(recipe, span) for text in batch.text.to_pylist()]
    assert found == texts


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


def zip_with(flags: int = 0, method: int = 0, size: int | None = None, crc: int | None = None) -> bytes:
    """Return a zip archive of one member, about which the directory says something else."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("bad.txt", b"some text")
    data = bytearray(buffer.getvalue())
    at = data.rfind(b"PK\1\2")
    struct.pack_into("<HH", data, at + 8, flags, method)
    struct.pack_into("<I", data, at + 16, zlib.crc32(b"some text") if crc is None else crc)
    struct.pack_into("<I", data, at + 24, 9 if size is None else size)
    return bytes(data)


def bomb() -> bytes:
    """Return a zip archive whose member says that it holds 20 bytes, and holds a megabyte."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bad.txt", bytes(1 << 20))
    data = bytearray(buffer.getvalue())
    struct.pack_into("<I", data, data.rfind(b"PK\1\2") + 24, 20)
    return bytes(data)


def tar_of(*entries: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


MALFORMED_MEMBERS = {
    "absolute": ("tar", tar_of(("/etc/bad.txt", b"x")), "has an absolute path"),
    "parent": ("tar", tar_of(("a/../../bad.txt", b"x")), "has `..` in its path"),
    "windows": ("tar", tar_of(("C:\\bad.txt", b"x")), "has an absolute path"),
    "tar in tar": ("tar", tar_of(("bad.tar", tar_of(("a.txt", b"x")))), "is an archive or a data set of its own"),
    "hidden tar": ("tar", tar_of(("bad", tar_of(("a.txt", b"x")))), "holds binary data"),
    "gzip": ("tar", tar_of(("bad.txt.gz", gzip.compress(bytes(1 << 20)))), "holds gzip, not text"),
    "jsonl": ("tar", tar_of(("bad.jsonl", b'{"text": "x"}\n')), "is an archive or a data set of its own"),
    "binary": ("tar", tar_of(("bad.png", bytes(range(256)))), "holds binary data, not text"),
    "encrypted": ("zip", zip_with(flags=1), "is encrypted"),
    "method": ("zip", zip_with(method=14), "is compressed by LZMA"),
    "crc": ("zip", zip_with(crc=1), "its CRC differs"),
    "fewer": ("zip", zip_with(size=100), "holds fewer bytes than the 100 stated"),
    "bomb": ("zip", bomb(), "holds more bytes than the 20 stated"),
    "claims 3 GB": ("zip", zip_with(size=3 << 30), "is 3,221,225,472 bytes long; a document has at most 268,435,456"),
    "not deflate": ("zip", zip_with(method=8), "cannot be decompressed"),
}


@pytest.mark.parametrize("case", MALFORMED_MEMBERS)
def test_a_member_that_cannot_be_a_document(case: str, tmp_path: Path, source: Any, read_all: Any) -> None:
    ending, data, words = MALFORMED_MEMBERS[case]
    (tmp_path / f"a.{ending}").write_bytes(data)
    message = error_of(source(tmp_path / f"a.{ending}"), read_all)
    assert f"a.{ending}: member 0, " in message
    assert words in message
    assert "bad" in message
    assert "Leave it out by `members`" in message
    assert read_all(source(tmp_path / f"a.{ending}", members=["!*bad*"])) == []
    tolerant = source(tmp_path / f"a.{ending}", max_malformed=1.0)
    assert read_all(tolerant) == []
    assert counts_of(tolerant) == {MALFORMED: 1}


WHOLE = tar_of(("a.txt", b"text " * 300), ("b.txt", b"more"))
HEADER_1 = 512 + 1536
ZIP = zip_with()
BROKEN = {
    "no tar": ("tar", b"something else " * 100, "is not a tar archive"),
    "half a member": ("tar", WHOLE[:1000], "bytes early: it is cut short"),
    "before a header": ("tar", WHOLE[:HEADER_1], "ends without the two empty blocks"),
    "half a header": ("tar", WHOLE[: HEADER_1 + 100], "bytes early: it is cut short"),
    "a damaged header": ("tar", WHOLE[:HEADER_1] + b"x" + WHOLE[HEADER_1 + 1 :], "holds no header of a member"),
    "two archives": ("tar", WHOLE + WHOLE, "holds data after its end"),
    "half, compressed": ("tar.gz", gzip.compress(WHOLE[:HEADER_1]), "bytes early: it is cut short"),
    "half of the gzip": ("tar.gz", gzip.compress(WHOLE)[:-20], "Truncated"),
    "its end lost": ("tar.gz", gzip.compress(WHOLE)[:-4], "Truncated"),
    "half a zip": ("zip", ZIP[: len(ZIP) // 2], "it has no directory at its end"),
    "no zip": ("zip", b"something else", "it has no directory at its end"),
    "a lost byte": ("zip", ZIP[1:], "its directory is not where its end says"),
    "a damaged directory": ("zip", ZIP.replace(b"PK\1\2", b"PK\1\3"), "its directory is damaged"),
    "a wrong offset": (
        "zip",
        ZIP[: ZIP.rfind(b"PK\1\2") + 42] + b"\xff\xff\xff\0" + ZIP[ZIP.rfind(b"PK\1\2") + 46 :],
        "not in the file",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_archive_that_is_broken_or_cut_short(case: str, tmp_path: Path, source: Any, read_all: Any) -> None:
    ending, data, words = BROKEN[case]
    (tmp_path / f"a.{ending}").write_bytes(data)
    for tolerance in (0.0, 1.0):
        message = error_of(source(tmp_path / f"a.{ending}", max_malformed=tolerance), read_all)
        assert message.startswith((f"source 's': a.{ending}: ", f"a.{ending}: "))
        assert words in message
        assert "Restore the file" in message


def test_a_tar_member_that_claims_10_gb(tmp_path: Path, source: Any, read_all: Any) -> None:
    info = tarfile.TarInfo("a.txt")
    info.size = 10 << 30
    data = info.tobuf(tarfile.GNU_FORMAT) + b"a little"
    for name, stored in (("a.tar", data), ("a.tar.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(stored)
        message = error_of(source(tmp_path / name, max_malformed=1.0), read_all)
        assert "bytes early: it is cut short" in message


def test_a_member_larger_than_a_document_is_skipped(
    tmp_path: Path, source: Any, read_all: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "MAX_BYTES", 1000)
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"a"), ("large.txt", b"l" * 5000), ("b.txt", b"b")], "w:gz")
    path = path.rename(tmp_path / "a.tgz")
    assert "large.txt: is 5,000 bytes long" in error_of(source(path), read_all)
    assert texts_of(read_all(source(path, max_malformed=0.5))) == [b"a", b"b"]


def test_overlapping_members_of_a_zip_are_refused(tmp_path: Path, source: Any, read_all: Any) -> None:
    data = bytearray(write_zip(tmp_path / "a.zip", [("a.txt", b"a" * 100), ("b.txt", b"b" * 100)], 0).read_bytes())
    second = data.rfind(b"PK\1\2")
    struct.pack_into("<I", data, second + 42, 0)  # both directory entries name the same content
    (tmp_path / "a.zip").write_bytes(data)
    assert "holds members whose contents overlap, as in a bomb" in error_of(source(tmp_path / "a.zip"), read_all)


def test_an_archive_without_members_has_no_span(tmp_path: Path, source: Any) -> None:
    write_tar(tmp_path / "a.tar", [])
    write_tar(tmp_path / "a.tar.gz", [], "w:gz")
    write_zip(tmp_path / "a.zip", [])
    for name in ("b.tar", "b.zip", "b.wet"):
        (tmp_path / name).write_bytes(b"")
    assert list_spans_of(source(tmp_path / "b.tar", format="webdataset")) == []
    assert list_spans_of(source(tmp_path / "*")) == []


def test_archives_on_another_file_system(tmp_path: Path, source: Any) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/archives/a.tar", WHOLE)
    memory.pipe("/archives/b.tar.gz", gzip.compress(WHOLE))
    memory.pipe("/archives/c.zip", ZIP)
    memory.pipe("/archives/d.wet.gz", gzip.compress(warc_record(b"a record")))
    recipe = source("memory://archives/*")
    spans = [span for file in files.list_files(recipe) for span in files.list_spans(recipe, file, 100)]
    assert [span.part for span in spans] == ["b0-10240", f"b0-{spans[1].stop}", "m0-1", f"b0-{spans[3].stop}"]
    found = [text for span in spans for batch in files.read(recipe, span) for text in batch.text.to_pylist()]
    assert found == [*(b"text " * 300, b"more") * 2, b"some text", b"a record"]


def test_names_that_are_not_utf_8_and_carried_names(tmp_path: Path, source: Any) -> None:
    data = tar_of(("caf\udce9.txt", b"latin-1 name"), ("b.txt", b"x"))
    (tmp_path / "a.tar").write_bytes(data)
    assert carried_of(source(tmp_path / "a.tar", carry=["member"])) == [{"member": "caf\\xe9.txt"}, {"member": "b.txt"}]
    write_zip(tmp_path / "a.zip", [("日本.txt", b"x"), ("b.md", b"y")])
    recipe = source(tmp_path / "a.zip", carry=["member"], keep={"member": "!= 'b.md'"})
    assert carried_of(recipe) == [{"member": "日本.txt"}]
    assert "there are text, member" in error_of(source(tmp_path / "a.zip", carry=["name"]), carried_of)


def test_encodings_of_members(tmp_path: Path, source: Any, read_all: Any) -> None:
    write_tar(tmp_path / "a.tar", [("a.txt", "é".encode("latin-1")), ("b.txt", b"plain")])
    assert texts_of(read_all(source(tmp_path / "a.tar", encoding="latin-1"))) == ["é".encode(), b"plain"]


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


def test_a_cut_webdataset_has_the_same_samples(tmp_path: Path, source: Any) -> None:
    entries = [
        (f"{number:03}.{ending}", data)
        for number in range(200)
        for ending, data in (("txt", b"%d " % number * 300), ("json", json.dumps({"n": number}).encode()))
    ]
    recipe = source(write_tar(tmp_path / "a.tar", entries), carry=["n"])
    (file,) = files.list_files(recipe)
    spans = files.list_spans(recipe, file, 50_000)
    assert len(spans) > 3
    batches = [batch for span in spans for batch in files.read(recipe, span, (("n", "int64"),))]
    assert [text for batch in batches for text in batch.text.to_pylist()] == [b"%d " % n * 300 for n in range(200)]
    assert [row["n"] for batch in batches for row in (batch.carried or pa.table({})).to_pylist()] == list(range(200))


MALFORMED_SAMPLES = {
    "not JSON": ("0.json", b"{not json", "0.json"),
    "an array": ("0.json", b"[1]", "0.json"),
    "empty": ("0.json", b" \n", "0.json"),
    "two": ("0.txt", b"another text", "is the second of its key and ending"),
    "text is a number": ("1.json", b'{"text": 1}', "1.json"),
}


@pytest.mark.parametrize("case", MALFORMED_SAMPLES)
def test_malformed_samples(case: str, tmp_path: Path, source: Any, read_all: Any) -> None:
    name, data, words = MALFORMED_SAMPLES[case]
    entries = [("0.txt", b"text"), (name, data), ("2.json", b'{\n  "id": 2,\n  "text": "good"\n}\n')]
    path = write_tar(tmp_path / "a.tar", entries)
    message = error_of(source(path, format="webdataset"), read_all)
    assert "a.tar: sample " in message
    assert words in message
    tolerant = source(path, format="webdataset", max_malformed=0.9)
    assert b"good" in texts_of(read_all(tolerant))
    assert counts_of(tolerant)[MALFORMED] == 1


def test_a_webdataset_without_its_column_says_what_it_is_read_as(tmp_path: Path, source: Any, read_all: Any) -> None:
    path = write_tar(tmp_path / "a.tar", [("package.json", b'{"name": "x"}'), ("index.js", b"1;\n")])
    message = error_of(source(path), read_all)
    assert "no column 'text' in its first records; there are __key__, name" in message
    assert 'format = "tar"' in message
    assert len(read_all(source(path, format="tar"))) == 2
    assert texts_of(read_all(source(path, text="name"))) == [b"x"]


def test_archives_by_their_first_bytes(tmp_path: Path, source: Any, read_all: Any) -> None:
    (tmp_path / "a").write_bytes(WHOLE)
    (tmp_path / "b.tgz").write_bytes(gzip.compress(WHOLE))
    (tmp_path / "c.crate").write_bytes(WHOLE)
    (tmp_path / "d").write_bytes(warc_record(b"a record"))
    assert [span.format for span in list_spans_of(source(tmp_path / "*"))] == ["tar", "tar", "tar", "warc"]
    assert len(read_all(source(tmp_path / "*"))) == 7
    (tmp_path / "e.docx").write_bytes(ZIP)
    assert "holds a zip archive, not text" in error_of(source(tmp_path / "e.docx"), read_all)


def test_provenance_leads_back_to_the_member(tmp_path: Path, source: Any, read_all: Any) -> None:
    write_tar(tmp_path / "a.tar", TREE)
    write_zip(tmp_path / "b.zip", [(f"{number}.txt", b"%d" % number) for number in range(5)])
    recipe = source(tmp_path / "*")
    for label, row, text in read_all(recipe):
        keys = {**recipe.model_dump(mode="json"), "folder": "/"}
        assert read_documents_again(keys, label, [row, 99]) == [text, None]
