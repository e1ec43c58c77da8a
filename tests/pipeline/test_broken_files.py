"""Files that are broken, ambiguous or not what a recipe says: each is named, and refused or counted."""

# pyright: basic
from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.sources.base import MALFORMED
from pipeline.sources.formats.archives import members, warc
from tests.support.archives import counts_of, http_response, warc_record, write_tar, write_zip
from tests.support.builds import error_of

ROWS = [{"text": f"text {n} \u00fc", "n": n} for n in range(27)]


def ipc_bytes(new: Any) -> bytes:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(ROWS)
    with new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return sink.getvalue()


def parquet_bytes(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def csv_of(*lines: str) -> bytes:
    return "\n".join(lines).encode() + b"\n"


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


WHOLE = tar_of(("a.txt", b"text " * 300), ("b.txt", b"more"))
HEADER_1 = 512 + 1536
ZIP = zip_with()
PAGES = [warc_record(text, url=f"https://example.org/{len(text)}") for text in (b"first", b"two", b"", b"a" * 5000)]
DAMAGED = gzip.compress(PAGES[3])[:100] + b"\0\0\0" + gzip.compress(PAGES[3])[103:]
PARQUET = parquet_bytes(text=[os.urandom(50).hex() for _ in range(1000)])
LINES = b"".join(b'{"text": "line %d"}\n' % number for number in range(3000))
LARGE_XZ = lzma.compress(LINES, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}])
RANDOM_LINES = b"\n".join(json.dumps({"text": os.urandom(400).hex()}).encode() for _ in range(300))


def members_of(*records: bytes) -> bytes:
    return b"".join(map(gzip.compress, records))


BROKEN: dict[str, tuple[bytes, str]] = {
    "a.csv ragged": (
        csv_of("text,n", "a,1", "b", "c,1"),
        r"a\.csv: record 1: 1 field, expected 2: b\. Repair",
    ),
    "a.csv too many": (csv_of("text,n", "a,1,2"), "record 0: 3 fields, expected 2: a,1,2"),
    "a.csv open quote": (
        csv_of("text,n", "a,1", '"b,1', "c,1"),
        'a quote is never closed, in record 1 or after it: "b,1',
    ),
    "a.csv cut short": (csv_of("text,n", 'a,"long')[:-3], "a quote is never closed"),
    "a.csv delimiter": (csv_of("text;n", "a;1"), "Are its columns separated by ';'\\? Set `delimiter`"),
    "a.csv tabs": (csv_of("text\tn", "a\t1"), r"separated by '\\t'"),
    "a.csv no header": (
        csv_of("a story,1", "b,2"),
        "no column 'text' in its header, .* there are a story, 1.* no header",
    ),
    "a.csv twins": (csv_of("text,n,text", "a,1,b"), "has 'text' as the name of 2 columns"),
    "data by content": (csv_of("text\tn", "a\t1", "b\t2"), 'Set `format` to "csv"'),
    "a.arrow file cut": (ipc_bytes(pa.ipc.new_file)[:-300], "not whole Arrow IPC.*Restore the file"),
    "a.arrow stream cut": (ipc_bytes(pa.ipc.new_stream)[:-300], "cut short"),
    "a.arrow end mark alone cut": (ipc_bytes(pa.ipc.new_stream)[:-8], "cut short"),
    "a.arrow head alone": (b"ARROW1\0\0", "not whole Arrow IPC"),
    "a.arrow something else": (b"some text", "expected Arrow IPC"),
    "a.feather old": (b"FEA1" + bytes(40), "Feather version 1"),
    "a.arrow.gz gzip": (gzip.compress(ipc_bytes(pa.ipc.new_stream)), "Decompress the file"),
    "a.json object": (
        json.dumps({"data": ROWS}, indent=1).encode(),
        "neither one object a line nor one array",
    ),
    "a.json cut": (json.dumps(ROWS).encode()[:-30], "cut short"),
    "a.json cut after an element": (b'[{"text": "a"}, {"text": [1]', "cut short"),
    "a.json.gz cut in gzip": (gzip.compress(json.dumps(ROWS).encode()[:-30]), "cut short"),
    "a.json no key": (b'[{"body": "a"}]', "there are body. Correct `text`."),
    "a.json array in a line": (
        json.dumps({"n": 1, "data": ROWS}).encode(),
        "Correct `text`; or is 'data' the array of the records\\? Write it as a file of its own: `jq .data`",
    ),
    "a.json texts": (b'["a", "b"]', r"record 0: .*"),
    "a.json goes on": (b'[{"text": "a"}] [{"text": "b"}]', "goes on after the end of its array: "),
    "a.json no string": (b'[{"text": "a"}, {"text": 5}]', "record 1: "),
    "a.json line end in a string": (b'[{"text": "a"}, {"text": "b\nc"}]', "record 1: "),
    "a.tar no tar": (b"something else " * 100, "is not a tar archive"),
    "a.tar half a member": (WHOLE[:1000], "bytes early: it is cut short"),
    "a.tar before a header": (WHOLE[:HEADER_1], "ends without the two empty blocks"),
    "a.tar half a header": (WHOLE[: HEADER_1 + 100], "bytes early: it is cut short"),
    "a.tar a damaged header": (
        WHOLE[:HEADER_1] + b"x" + WHOLE[HEADER_1 + 1 :],
        "holds no header of a member",
    ),
    "a.tar two archives": (WHOLE + WHOLE, "holds data after its end"),
    "a.tar.gz half, compressed": (gzip.compress(WHOLE[:HEADER_1]), "bytes early: it is cut short"),
    "a.tar.gz half of the gzip": (gzip.compress(WHOLE)[:-20], "Truncated"),
    "a.tar.gz its end lost": (gzip.compress(WHOLE)[:-4], "Truncated"),
    "a.zip half a zip": (ZIP[: len(ZIP) // 2], "it has no directory at its end"),
    "a.zip no zip": (b"something else", "it has no directory at its end"),
    "a.zip a lost byte": (ZIP[1:], "its directory is not where its end says"),
    "a.zip a damaged directory": (ZIP.replace(b"PK\1\2", b"PK\1\3"), "its directory is damaged"),
    "a.zip a wrong offset": (
        ZIP[: ZIP.rfind(b"PK\1\2") + 42] + b"\xff\xff\xff\0" + ZIP[ZIP.rfind(b"PK\1\2") + 46 :],
        "not in the file",
    ),
    "a.warc too long": (
        b"".join([PAGES[0], warc_record(b"x", Content_Length="100"), PAGES[1]]),
        "at the end of record 1",
    ),
    "a.warc too short": (
        b"".join([PAGES[0], warc_record(b"x" * 99, Content_Length="5"), PAGES[1]]),
        "at the end of record 1",
    ),
    "a.warc negative": (
        b"".join([PAGES[0], warc_record(b"x", Content_Length="-1")]),
        "its Content-Length is '-1'",
    ),
    "a.warc no length": (
        b"".join([PAGES[0], warc_record(b"x", Content_Length=None)]),
        "its Content-Length is ''",
    ),
    "a.warc 10 TB": (
        b"".join([PAGES[0], warc_record(b"x", Content_Length="9999999999999")]),
        "of the 9,999,999,999,999 bytes",
    ),
    "a.warc cut in a text": (b"".join([PAGES[0], PAGES[3]])[:-1000], "bytes that its Content-Length states"),
    "a.warc cut in a header": (b"".join([PAGES[0], PAGES[3]])[:-5020], "Content-Length is ''"),
    "a.warc cut in what is not read": (
        http_response(b"<p>" * 100, "text/html")[:-50],
        "bytes that its Content-Length states",
    ),
    "a.warc no WARC": (b"some text\r\n\r\nand more", "expected a WARC record at its start"),
    "a.warc text between": (
        PAGES[0] + b"some text\r\n\r\n" + PAGES[1],
        "expected a WARC record at the end of record 0",
    ),
    "a.warc.gz half a member": (members_of(*PAGES)[:-30], "Truncated"),
    "a.warc.gz its end lost": (members_of(*PAGES)[:-4], "Truncated"),
    "a.warc.gz a damaged member": (
        members_of(PAGES[0]) + DAMAGED + members_of(PAGES[1]),
        "zlib inflate failed",
    ),
    "a.warc.gz text after a member": (members_of(PAGES[0]) + b"text", "zlib inflate failed"),
    "a.jsonl.xz half a stream": (lzma.compress(LINES)[:300], "Truncated compressed stream"),
    "a.jsonl.xz half of a second stream": (
        lzma.compress(LINES) + lzma.compress(LINES)[:-2],
        "Truncated compressed stream",
    ),
    "a.jsonl.xz no second stream": (lzma.compress(LINES) + b"something else", "not supported"),
    "a.jsonl.xz a damaged byte": (
        lzma.compress(LINES).replace(lzma.compress(LINES)[200:204], b"\0\0\0\0"),
        "Corrupt input",
    ),
    "a.jsonl.xz 1 GiB of memory": (LARGE_XZ, "256 MiB"),
    "a.jsonl.gz jsonl": (gzip.compress(RANDOM_LINES)[:20_000], "Truncated compressed stream"),
    "a.py.gz a file": (gzip.compress(RANDOM_LINES)[:20_000], "Truncated compressed stream"),
    "a.parquet cut": (PARQUET[:-100], "not a whole parquet file"),
    "a.parquet empty": (b"", "not a whole parquet file"),
    "a.parquet a page": (PARQUET[:100] + bytes(19_900) + PARQUET[20_000:], "row group 0 cannot be decoded"),
}
"""By file and case: the bytes, and words of the message, a pattern."""
ONCE_MALFORMED = ("a.csv ragged", "a.csv too many", "a.json texts", "a.json no string", "a.json line end in a string")
"""Those whose records are counted if the recipe allows malformed ones."""


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_by_its_name(case: str, tmp_path: Path, source: Any, read_all: Any) -> None:
    name, (data, words) = case.split(" ")[0], BROKEN[case]
    (tmp_path / name).write_bytes(data)
    for tolerance in (0.0,) if case in ONCE_MALFORMED else (0.0, 1.0):
        message = error_of(source(tmp_path / name, max_malformed=tolerance), read_all)
        assert message.startswith((f"source 's': {name}: ", f"{name}: "))
        assert re.search(f"(?s){words}", message), message


MALFORMED_MEMBERS: dict[str, tuple[bytes, str]] = {
    "a.tar absolute": (tar_of(("/etc/bad.txt", b"x")), "has an absolute path"),
    "a.tar parent": (tar_of(("a/../../bad.txt", b"x")), "has `..` in its path"),
    "a.tar windows": (tar_of(("C:\\bad.txt", b"x")), "has an absolute path"),
    "a.tar tar in tar": (tar_of(("bad.tar", tar_of(("a.txt", b"x")))), "is an archive or a data set of its own"),
    "a.tar hidden tar": (tar_of(("bad", tar_of(("a.txt", b"x")))), "holds binary data"),
    "a.tar gzip": (tar_of(("bad.txt.gz", gzip.compress(bytes(1 << 20)))), "holds gzip, not text"),
    "a.tar jsonl": (tar_of(("bad.jsonl", b'{"text": "x"}\n')), "is an archive or a data set of its own"),
    "a.tar binary": (tar_of(("bad.png", bytes(range(256)))), "holds binary data, not text"),
    "a.zip encrypted": (zip_with(flags=1), "is encrypted"),
    "a.zip method": (zip_with(method=14), "is compressed by LZMA"),
    "a.zip crc": (zip_with(crc=1), "its CRC differs"),
    "a.zip fewer": (zip_with(size=100), "holds fewer bytes than the 100 stated"),
    "a.zip bomb": (bomb(), "holds more bytes than the 20 stated"),
    "a.zip claims 3 GB": (zip_with(size=3 << 30), "is 3,221,225,472 bytes long; a document has at most 268,435,456"),
    "a.zip not deflate": (zip_with(method=8), "cannot be decompressed"),
}


@pytest.mark.parametrize("case", MALFORMED_MEMBERS)
def test_a_member_that_cannot_be_a_document(case: str, tmp_path: Path, source: Any, read_all: Any) -> None:
    name, (data, words) = case.split(" ")[0], MALFORMED_MEMBERS[case]
    (tmp_path / name).write_bytes(data)
    message = error_of(source(tmp_path / name), read_all)
    assert re.search(f"{name}: member 0, .*bad.*{re.escape(words)}.*Leave it out by `members`", message), message
    assert read_all(source(tmp_path / name, members=["!*bad*"])) == []
    assert read_all(source(tmp_path / name, max_malformed=1.0)) == []
    assert counts_of(source(tmp_path / name, max_malformed=1.0)) == {MALFORMED: 1}


MALFORMED_RECORDS = {
    "no URL": (warc_record(b"text", url=None), "record 1, without a URL: has no WARC-Target-URI"),
    "large": (warc_record(b"x" * 9000), "is 9,000 bytes long; a document has at most 8,000"),
    "gzip bomb": (
        http_response(gzip.compress(bytes(10**6)), "text/plain", "Content-Encoding: gzip"),
        "a body of more than 8,000",
    ),
    "no gzip": (
        http_response(b"no gzip", "text/plain", "Content-Encoding: gzip"),
        "its HTTP response cannot be decoded",
    ),
}


@pytest.mark.parametrize("case", MALFORMED_RECORDS)
def test_a_record_that_cannot_be_a_document(
    case: str, tmp_path: Path, source: Any, read_all: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warc, "MAX_BYTES", 8000)
    record, words = MALFORMED_RECORDS[case]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(members_of(PAGES[0], record, PAGES[1]))
    message = error_of(source(path), read_all)
    assert message.startswith("a.warc.gz: record 1, ")
    assert words in message
    assert [text for _, _, text in read_all(source(path, max_malformed=0.5))] == [b"first", b"two"]
    assert counts_of(source(path, max_malformed=0.5)) == {MALFORMED: 1}


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
    assert "good" in [text if isinstance(text, str) else text.decode() for _, _, text in read_all(tolerant)]
    assert counts_of(tolerant)[MALFORMED] == 1


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
    assert [text for _, _, text in read_all(source(path, max_malformed=0.5))] == [b"a", b"b"]


def test_overlapping_members_of_a_zip_are_refused(tmp_path: Path, source: Any, read_all: Any) -> None:
    data = bytearray(write_zip(tmp_path / "a.zip", [("a.txt", b"a" * 100), ("b.txt", b"b" * 100)], 0).read_bytes())
    second = data.rfind(b"PK\1\2")
    struct.pack_into("<I", data, second + 42, 0)  # both directory entries name the same content
    (tmp_path / "a.zip").write_bytes(data)
    assert "holds members whose contents overlap, as in a bomb" in error_of(source(tmp_path / "a.zip"), read_all)


BAD_RECORDS = {
    "lone surrogate": (b'{"text": "\\ud800"}', "surrogate"),
    "broken": (b'{"text": ', "Invalid value"),
    "number": (b'{"text": 1}', "changed from string to number"),
    "list": (b"[1]", "changed from object to array"),
    "null": (b"null", "expected an object"),
    "raw NUL": (b'{"text": "\x00"}', "JSON parse error"),
    "cut off": (b'{"text": "x', "JSON parse error"),
}


@pytest.mark.parametrize("record", [0, 1, 700])
@pytest.mark.parametrize("kind", BAD_RECORDS)
def test_bad_json_names_file_and_record(kind: str, record: int, tmp_path: Path, source: Any, read_all: Any) -> None:
    lines = [json.dumps({"text": f"text {index} " + "x" * 200}).encode() for index in range(800)]
    lines.insert(record, BAD_RECORDS[kind][0])
    (tmp_path / "a.jsonl").write_bytes(b"\n\n".join(lines))
    message = error_of(source(tmp_path / "a.jsonl"), read_all)
    assert f"a.jsonl: record {record}: " in message
    assert BAD_RECORDS[kind][1] in message
