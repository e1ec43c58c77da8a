"""Text files in other encodings than UTF-8: every text format, cut and compressed; byte order marks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.sources import files
from pipeline.sources.formats import byte_io
from pipeline.sources.formats.encodings import decode_whole, is_cuttable

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


@pytest.mark.parametrize("block", [1, 8 << 20])
@pytest.mark.parametrize("format_", ["text", "jsonl", "json", "csv", "file", "auto"])
@pytest.mark.parametrize("encoding", TEXTS)
def test_text_is_read_in_its_encoding(
    encoding: str, format_: str, block: int, tmp_path: Path, source: Any, read_all: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_io, "BATCH_BYTES", block)
    documents = [f"{TEXTS[encoding]} {n}\nsecond line" for n in range(5)]
    if format_ in ("jsonl", "json"):
        lines = [json.dumps({"text": document}, ensure_ascii=False) for document in documents]
        text = "\n".join(lines) if format_ == "jsonl" else f"[{', '.join(lines)}]"
    elif format_ in ("text", "csv"):
        text = "\n\n".join(documents) if format_ == "text" else 'text\n"' + '"\n"'.join(documents) + '"'
    else:
        text, documents = documents[0], documents[:1]
    name = "a.md" if format_ == "auto" else "a"
    (tmp_path / name).write_bytes(text.encode(encoding))
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode(encoding)))
    stated = "utf-8" if encoding == "utf-8-sig" else encoding  # a mark at the start is no text
    keys = {"format": format_, "encoding": stated, **({"separator": "\n\n"} if format_ == "text" else {})}
    found = [row[2] for row in read_all(source(tmp_path / name, tmp_path / f"{name}.gz", **keys))]
    assert [value.decode() if isinstance(value, bytes) else value for value in found] == documents * 2


@pytest.mark.parametrize("encoding", ["latin-1", "windows-1252", "koi8-r", "cp037", "utf-16", "shift_jis", "gb18030"])
def test_cuts_do_not_change_the_documents(encoding: str, tmp_path: Path, source: Any) -> None:
    """Files whose characters have several bytes, other than UTF-8, are one span: their bytes cannot be searched."""
    documents = [f"{TEXTS[encoding]} {n}" for n in range(200)]
    (tmp_path / "a.txt").write_bytes("\n\n".join(documents).encode(encoding))
    recipe = source(tmp_path / "a.txt", encoding=encoding, separator="\n\n")
    spans = files.list_spans(recipe, files.list_files(recipe), 1000)
    assert (len(spans) > 1) == is_cuttable(recipe.encoding) == (encoding not in ("utf-16", "shift_jis", "gb18030"))
    found = [text for span in spans for batch in files.read_span(recipe, span) for text in batch.text.to_pylist()]
    assert found == [document.encode() for document in documents]


@pytest.mark.parametrize(
    ("encoding", "data", "marked"),
    [
        ("windows-1252", b"a\x81\xe9", b"a\xff81\xc3\xa9"),
        ("ascii", "é".encode(), b"\xffc3\xffa9"),
        ("utf-16", b"\xff\xfea\0b\0c", b"ab\xff63"),
        ("shift_jis", b"a\x81", b"a\xff81"),
    ],
)
def test_a_byte_that_does_not_decode_stays_visible(encoding: str, data: bytes, marked: bytes) -> None:
    """Undecodable bytes of ASCII that are UTF-8 together must not become text."""
    assert decode_whole(data, encoding) == marked


def test_a_mark_where_a_span_begins_is_text(tmp_path: Path, source: Any) -> None:
    """Only the start of a file has a byte order mark; joined files have one in the middle, which is a character."""
    (tmp_path / "a.txt").write_text("\n".join(["\ufeffone"] * 100), encoding="utf-8")
    recipe = source(tmp_path / "a.txt", separator="\n")
    spans = files.list_spans(recipe, files.list_files(recipe), 50)
    texts = [text for span in spans for batch in files.read_span(recipe, span) for text in batch.text.to_pylist()]
    assert len(spans) > 5
    assert texts == [b"one"] + ["\ufeffone".encode()] * 99
