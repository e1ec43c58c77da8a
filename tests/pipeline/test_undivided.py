"""Text files in which the separator never occurs are said, with the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.clean.documents import DocumentStream
from shards import open_set
from tests.support import recipes
from tests.support.builds import build_here, list_spans_of

DOCUMENTS = [f"Document {n}\nwith two lines about number {n * n}" for n in range(300)]
CRLF = "\n\n".join(DOCUMENTS).replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "separator", "found"),
    [
        (CRLF, "\n\n", [r'a.txt (has "\r\n\r\n")']),
        ("\n\n".join(DOCUMENTS), "\r\n\r\n", [r'a.txt (has "\n\n")']),
        ("a\r\n<end>\r\nb", "\n<end>\n", [r'a.txt (has "\r\n<end>\r\n")']),
        ("long text " * 9000, "\n\n", ["a.txt"]),
        ("one short document", "\n\n", []),
        (CRLF, "\r\n\r\n", []),
        ("long text " * 9000 + "\n\n", "\n\n", []),
        ("", "\n\n", []),
    ],
)
def test_files_without_the_separator_are_told(
    text: str, separator: str, found: list[str], tmp_path: Path, source: Any
) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode() or b"\n\n")
    recipe = source(tmp_path / "a.txt", separator=separator)
    stream = DocumentStream(recipe, list_spans_of(recipe))
    assert sum(len(documents) for _, documents in stream) >= len(found)
    assert stream.tally.undivided == found


def test_plan_and_build_say_it(tmp_path: Path, recipe: Path, expected: dict[str, str], run_cli: Any) -> None:
    tokenizer = {"file": str(recipe.parent / "set" / "tokenizer.json")}
    (tmp_path / "a.txt").write_bytes(CRLF.encode())
    web = recipes.source("web", "a.txt", separator="\n\n")
    recipes.write_recipe(tmp_path / "r.toml", web, tokenizer=tokenizer)
    words = 'read as one document each: a.txt (has "\\r\\n\\r\\n"). Correct `separator`'
    assert words in run_cli("plan", "r.toml").stdout
    assert words in build_here(tmp_path / "r.toml", tmp_path / "out")["stderr"]
    again = build_here(tmp_path / "r.toml", tmp_path / "out")
    assert words in again["stderr"], "also when nothing is encoded again"
    remedied = build_here(tmp_path / "r.toml", tmp_path / "out", "--set", 'sources.web.separator="\\r\\n\\r\\n"')
    assert "line ends" not in remedied["stderr"]
    assert open_set(tmp_path / "out").manifest.splits["train"].documents == 300
