"""Text files in which the separator never occurs are said, with the remedy."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from pipeline.clean.documents import DocumentStream
from pipeline.sources.base import Undivided
from shards import open_set
from tests.support import recipes
from tests.support.builds import build_here, list_spans_of

DOCUMENTS = [f"Document {n}\nwith two lines about number {n * n}" for n in range(300)]
CRLF = "\n\n".join(DOCUMENTS).replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "separator", "found"),
    [
        (CRLF, "\n\n", {"\r\n\r\n": 1}),
        ("\n\n".join(DOCUMENTS), "\r\n\r\n", {"\n\n": 1}),
        ("a\r\n<end>\r\nb", "\n<end>\n", {"\r\n<end>\r\n": 1}),
        ("long text " * 9000, "\n\n", {"": 1}),
        ("one short document", "\n\n", {}),
        (CRLF, "\r\n\r\n", {}),
        ("long text " * 9000 + "\n\n", "\n\n", {}),
        ("", "\n\n", {}),
    ],
)
def test_files_without_the_separator_are_counted(
    text: str, separator: str, found: dict[str, int], tmp_path: Path, source: Any
) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode() or b"\n\n")
    recipe = source(tmp_path / "a.txt", separator=separator)
    stream = DocumentStream(recipe, list_spans_of(recipe))
    assert sum(len(documents) for _, documents in stream) >= len(found)
    assert stream.tally.undivided.files == found


def test_they_are_counted_by_the_separator_that_they_have(tmp_path: Path, source: Any) -> None:
    for n in range(5):
        (tmp_path / f"{n}.txt.gz").write_bytes(gzip.compress(CRLF.encode()))
    (tmp_path / "5.txt").write_bytes(("Ω" * 40_000).encode("utf-16"))
    found = Undivided()
    for keys in ({}, {"encoding": "utf-16"}):
        recipe = source(tmp_path / ("*.txt" if keys else "*.gz"), separator="\n\n", **keys)
        stream = DocumentStream(recipe, list_spans_of(recipe))
        assert sum(len(documents) for _, documents in stream) == (1 if keys else 5)
        found.update(stream.tally.undivided)
    never, other = found.describe(source("a", separator="\n\n"))
    assert 'the separator "\\n\\n" never occurs in 1 text file of 65,536 bytes or more that is read as one' in never
    assert '5.txt. Correct `separator`, or set format = "file" if each file is one document.' in never
    assert 'with other line ends, "\\r\\n\\r\\n", in 5 text files that are read as one document each: ' in other
    assert ': 0.txt.gz, 1.txt.gz, 2.txt.gz and 2 more. Set separator = "\\r\\n\\r\\n"; if other files have' in other


def test_plan_and_build_say_it(tmp_path: Path, recipe: Path, expected: dict[str, str], run_cli: Any) -> None:
    tokenizer = {"file": str(recipe.parent / "set" / "tokenizer.json")}
    (tmp_path / "a.txt").write_bytes(CRLF.encode())
    web = recipes.source("web", "a.txt", separator="\n\n")
    recipes.write_recipe(tmp_path / "r.toml", web, tokenizer=tokenizer)
    words = 'occurs only with other line ends, "\\r\\n\\r\\n", in 1 text file that is read as one document: a.txt.'
    assert words in run_cli("plan", "r.toml").stdout
    assert words in build_here(tmp_path / "r.toml", tmp_path / "out")["stderr"]
    again = build_here(tmp_path / "r.toml", tmp_path / "out")
    assert words in again["stderr"], "also when nothing is encoded again"
    remedied = build_here(tmp_path / "r.toml", tmp_path / "out", "--set", 'sources.web.separator="\\r\\n\\r\\n"')
    assert "line ends" not in remedied["stderr"]
    assert open_set(tmp_path / "out").manifest.splits["train"].documents == 300
