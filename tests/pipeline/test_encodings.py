"""Text files in other encodings than UTF-8: every text format, cut and compressed; byte order marks."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.sources.formats import byte_io
from pipeline.sources.formats.encodings import decode_whole
from tests.support.reading import files_source, list_spans_of, read_batches, texts_of

TEXTS = {
    "latin-1": "Le café noir, où l'été dure",
    "windows-1252": "“Curly” quotes – and € signs",
    "koi8-r": "Вечер тихий, снег и свет",
    "utf-16": "Ωμέγα 👩‍👩‍👧 中文 ab",
    "utf-16-be": "Ωμέγα 👩‍👩‍👧 中文 ab",
    "utf-32": "Ωμέγα 👩‍👩‍👧 中文 ab",
    "utf-8-sig": "naïve ½ \ufeff 中文 👩‍👩‍👧",
    "shift_jis": "日本語のテキスト、表 ソ",
    "gb18030": "中文字符 and 👩",
    "cp037": "EBCDIC text, as mainframes write",
}


FORMS: dict[str, Callable[[list[str]], str]] = {
    "text": "\n\n".join,
    "jsonl": lambda texts: "\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts),
    "json": lambda texts: json.dumps([{"text": text} for text in texts], ensure_ascii=False),
    "csv": lambda texts: 'text\n"' + '"\n"'.join(texts) + '"',
}


@pytest.mark.parametrize("block", [1, 8 << 20])
@pytest.mark.parametrize("format_", [*FORMS, "file", "auto"])
@pytest.mark.parametrize("encoding", TEXTS)
def test_text_is_read_in_its_encoding(
    encoding: str, format_: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(byte_io, "BATCH_BYTES", block)
    documents = [f"{TEXTS[encoding]} {n}\nsecond line" for n in range(5)]
    documents = documents if format_ in FORMS else documents[:1]
    text = FORMS.get(format_, "".join)(documents)
    name = "a.md" if format_ == "auto" else "a"
    (tmp_path / name).write_bytes(text.encode(encoding))
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode(encoding)))
    stated = "utf-8" if encoding == "utf-8-sig" else encoding  # a mark at the start is no text
    keys = {"format": format_, "encoding": stated, **({"separator": "\n\n"} if format_ == "text" else {})}
    source = files_source(tmp_path / name, tmp_path / f"{name}.gz", **keys)
    assert texts_of(read_batches(source)) == documents * 2


@pytest.mark.parametrize("encoding", ["latin-1", "windows-1252", "koi8-r", "cp037", "utf-16", "shift_jis", "gb18030"])
def test_cuts_do_not_change_the_documents(encoding: str, tmp_path: Path):
    """Files whose characters have several bytes, other than UTF-8, are one span: their bytes cannot be searched."""
    documents = [f"{TEXTS[encoding]} {n}" for n in range(200)]
    (tmp_path / "a.txt").write_bytes("\n\n".join(documents).encode(encoding))
    source = files_source(tmp_path / "a.txt", encoding=encoding, separator="\n\n")
    assert (len(list_spans_of(source, 1000)) > 1) == (encoding not in ("utf-16", "shift_jis", "gb18030"))
    assert texts_of(read_batches(source, 1000)) == documents


@pytest.mark.parametrize(
    ("encoding", "data", "marked"),
    [
        ("windows-1252", b"a\x81\xe9", b"a\xff81\xc3\xa9"),
        ("ascii", "é".encode(), b"\xffc3\xffa9"),
        ("utf-16", b"\xff\xfea\0b\0c", b"ab\xff63"),
        ("shift_jis", b"a\x81", b"a\xff81"),
    ],
)
def test_a_byte_that_does_not_decode_stays_visible(encoding: str, data: bytes, marked: bytes):
    """Undecodable bytes of ASCII that are UTF-8 together must not become text."""
    assert decode_whole(data, encoding) == marked


def test_a_mark_where_a_span_begins_is_text(tmp_path: Path):
    """Only the start of a file has a byte order mark; joined files have one in the middle, which is a character."""
    (tmp_path / "a.txt").write_text("\n".join(["\ufeffone"] * 100), encoding="utf-8")
    source = files_source(tmp_path / "a.txt", separator="\n")
    assert len(list_spans_of(source, 50)) > 5
    assert texts_of(read_batches(source, 50)) == ["one"] + ["\ufeffone"] * 99
