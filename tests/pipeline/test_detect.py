"""Files whose names do not tell their format: recognised by content, or refused with a remedy."""

# pyright: basic
from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.sources.base import SourceError
from tests.support.builds import list_spans_of
from tests.support.good_recipe import faults_of

LINES = "".join(json.dumps({"text": f"document {n}", "url": "https://example.org"}) + "\n" for n in range(5)).encode()


REFUSED = {
    "indented": ("a.json", json.dumps({"text": "a", "b": [1]}, indent=1).encode(), "neither one object a line nor"),
    "tsv by content": ("data", b"text\tlabel\na\t1\nb\t2\n", "looks like CSV or TSV"),
    "text in gzip": ("dump.gz", gzip.compress(b"one document\nor many?\n"), "name does not give its format"),
    "gzip without its ending": ("a.json", gzip.compress(LINES), "holds gzip data|is compressed (gzip)"),
    "zip by content": ("a.docx", b"PK\x03\x04\x14\x00", "is a zip archive"),
    "tar by content": ("a", bytes(257) + b"ustar" + bytes(250), "is a tar archive"),
    "WARC by content": ("a", b"WARC/1.0\r\n", "is a web crawl (WARC)"),
    "xz by content": ("a", b"\xfd7zXZ\x00", "is compressed by xz"),
    "binary": ("a.bin", bytes(range(256)), "holds binary data"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_become_one_raw_document_is_refused(case: str, tmp_path: Path, source: Any, read_all: Any) -> None:
    name, data, words = REFUSED[case]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError) as caught:
        list_spans_of(source(tmp_path / name))
    assert name in str(caught.value)
    assert any(part in str(caught.value) for part in words.split("|")), str(caught.value)
    if "format" in str(caught.value):
        assert len(read_all(source(tmp_path / name, format="file"))) == 1, "the remedy works"


PACKED = {
    "a.tar": "is a tar archive, which is not read. Unpack it first, `tar -xf {} -C FOLDER`, and name the files",
    "a.tar.gz": "`tar -xf {} -C FOLDER`",
    "a b.zip": "`unzip '{}' -d FOLDER`",
    "CC-1.warc.wet.gz": "is a web crawl (WARC), which is not read. Unpack it first, `python warc_to_jsonl.py {}`",
    "a.jsonl.xz": "is compressed by xz, which is not read. Unpack it first, `xz -d {}`",
}


@pytest.mark.parametrize("format_", ["auto", "file"])
def test_what_is_packed_is_refused_with_the_command_that_unpacks_it(format_: str, tmp_path: Path, source: Any) -> None:
    for name in PACKED:
        (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(SourceError) as caught:
        list_spans_of(source(tmp_path / "*", format=format_))
    for name, words in PACKED.items():
        assert f"{name}: " in str(caught.value)
        assert words.format(name) in str(caught.value)


def test_a_recipe_that_names_archives_is_refused(tmp_path: Path, load: Any) -> None:
    (tmp_path / "a.zip").write_bytes(b"anything")
    text = 'name = "x"\n[[sources]]\nname = "s"\nweight = 1\npaths = {}\n{}[tokenizer]\nvocab_size = 300\n'
    cases = {
        (f'["{tmp_path}/*"]', ""): "a.zip' is a zip archive, which is not read. Unpack it first, `unzip /",
        (f'["zip://*.jsonl::{tmp_path}/a.zip"]', ""): "files in an archive are not read. Unpack it first",
        ('["{folder}/a.py"]', 'format = "tar"\n'): "'tar' is gone: unpack the archive (`tar -xf`)",
    }
    for (paths, key), words in cases.items():
        faults = "\n".join(faults_of(load, text.replace("{}", paths, 1).replace("{}", key, 1)))
        assert words in faults, faults


def test_predicates_are_refused_for_a_file_without_columns(tmp_path: Path, source: Any) -> None:
    # Told by its first record, which is longer than what is looked at, after a byte order mark.
    (tmp_path / "a.json").write_bytes(codecs.BOM_UTF8 + LINES.replace(b"document 0", b"x" * 70_000))
    recipe = source(tmp_path / "*.json", keep={"url": "== https://example.org"})
    assert len(list_spans_of(recipe)) == 1
    (tmp_path / "b.json.md").write_bytes(b"# A page")
    recipe = source(tmp_path / "*.json*", keep={"url": "== https://example.org"})
    with pytest.raises(SourceError, match=r"b\.json\.md: is read as file and has no columns"):
        list_spans_of(recipe)


FILES = {
    "a.py": b"import os\n\nx = {'a': 1}\n",
    "a.md": b"[link]: https://example.org\n\n# A page\n",
    "a.py.gz": gzip.compress(b"import os\n"),
    "notes": b"Some notes,\nwith a comma, here and there,\nand more.\n",
    "empty.py": b"",
    "table.md": b"| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n",
}


@pytest.mark.parametrize("name", FILES)
def test_other_text_is_one_document_a_file(name: str, tmp_path: Path, source: Any, read_all: Any) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    ((_, row, text),) = read_all(source(tmp_path / name))
    assert (row, text) == (0, gzip.decompress(FILES[name]) if name.endswith(".gz") else FILES[name])
