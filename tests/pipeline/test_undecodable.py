"""Text that does not decode is malformed; records without text have a limit; an absent separator is told."""

# pyright: basic

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from pipeline.clean.documents import DocumentStream
from pipeline.clean.reasons import Dropped
from tests.support import recipes
from tests.support.builds import build_here, call_here
from tests.support.reading import files_source, list_spans_of
from tests.support.recipes import write_recipe

web = functools.partial(recipes.source, "web")
"""The table of the source of these tests."""


def test_build_and_plan_say_the_same(tmp_path: Path, recipe: Path, expected: dict[str, str]) -> None:
    """With a tokenizer of its own no sample is drawn: the encode stage finds it. Nulls are counted after it."""
    tokenizer = {"file": str(recipe.parent / "set" / "tokenizer.json")}
    write_recipe(tmp_path / "r.toml", web("*.jsonl"), tokenizer=tokenizer, mix={"when_short": "shrink"})
    lines = [json.dumps({"text": f"Document {n} is about something."}) for n in range(40)]
    bad = b'{"text": "caf\xe9 au lait"}\n' * 2 + b'{"text": null}\n' * 5 + b'{"other": 1}\n' * 5
    (tmp_path / "a.jsonl").write_bytes("\n".join(lines).encode() + b"\n" + bad)
    stopped = build_here(tmp_path / "r.toml", tmp_path / "out", expect=2)["stderr"]
    assert "2 of 52 records (3.85% of those read so far) are malformed" in stopped
    assert call_here("plan", "r.toml", cwd=tmp_path).stderr.endswith(stopped[stopped.index("error: ") :])
    keys = ["--set", "sources.web.max_malformed=0.05"]
    planned = call_here("plan", "r.toml", *keys, cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert "warning: the build would stop: source 'web': 10 of 52 records (19.23%" in planned.stdout
    stopped = build_here(tmp_path / "r.toml", tmp_path / "out", *keys, expect=2)["stderr"]
    assert "10 of 52 records (19.23%" in stopped
    built = build_here(tmp_path / "r.toml", tmp_path / "out", *keys, "--set", "sources.web.max_null=0.2")
    assert built["ran"]["encode"] == 0, "nothing is encoded again"
    assert built["sources"][0]["dropped"] == {"text is null": 10, "text is not valid UTF-8": 2}
    assert "2 of 52 records (3.85%) are malformed and dropped. Examples:\n  a.jsonl" in built["stderr"]
    barely = Dropped(19_998_001, 20_000_001)  # above 0.9999
    assert not [*barely.refuse("a", "", barely.enough(), change="")]


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
def test_files_without_the_separator_are_told(text: str, separator: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode() or b"\n\n")
    recipe = files_source(tmp_path / "a.txt", separator=separator)
    stream = DocumentStream(recipe, list_spans_of(recipe))
    assert sum(len(documents) for _, documents in stream) >= len(found)
    assert stream.tally.undivided == found
