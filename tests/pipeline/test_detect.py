"""Files whose names do not tell their format: recognised by content; other text is one document a file."""

# pyright: basic
from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

LINES = b"".join(json.dumps({"text": "x" * 70_000}).encode() + b"\n" for _ in range(2))
FILES = {
    "a.py": b"import os\n\nx = {'a': 1}\n",
    "a.md": b"[link]: https://example.org\n\n# A page\n",
    "a.py.gz": gzip.compress(b"import os\n"),
    "notes": b"Some notes,\nwith a comma, here and there,\nand more.\n",
    "empty.py": b"",
    "table.md": b"| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n",
    "a.json": codecs.BOM_UTF8 + LINES,
}


@pytest.mark.parametrize("name", FILES)
def test_json_lines_are_records_and_other_text_is_one_document_a_file(
    name: str, tmp_path: Path, source: Any, read_all: Any
) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    texts = [text for _, _, text in read_all(source(tmp_path / name))]
    whole = gzip.decompress(FILES[name]) if name.endswith(".gz") else FILES[name]
    assert texts == (["x" * 70_000] * 2 if name == "a.json" else [whole])
