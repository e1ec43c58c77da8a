"""Text that does not decode counts as malformed, in every format; records without text have a limit of their own."""

# pyright: basic

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.alarms import check_encoded
from pipeline.clean.documents import DocumentStream
from pipeline.clean.drops import Excess, find_excess
from pipeline.clean.tally import Tally
from pipeline.sources.base import MALFORMED, SourceError
from tests.support import recipes
from tests.support.builds import build_here, list_spans_of
from tests.support.recipes import write_recipe

web = functools.partial(recipes.source, "web")
"""The table of the source of these tests."""


def read(recipe: Any) -> DocumentStream:
    """Read a source; return what was counted."""
    stream = DocumentStream(recipe, list_spans_of(recipe))
    for _ in stream:
        stream.refuse_malformed()
    return stream


FORMATS: dict[str, tuple[str, bytes, dict[str, Any], str, str]] = {
    # name, content, keys, reason, what is shown
    "text": (
        "a.txt",
        b"one\n\ncaf\xe9\n\ntwo",
        {"separator": "\n\n"},
        "text is not valid UTF-8",
        "a.txt b0-14 row 1: ",
    ),
    "JSON lines": (
        "a.jsonl",
        b'{"text": "one"}\n{"text": "caf\xe9"}\n',
        {},
        "text is not valid UTF-8",
        " row 1: byte 0xe9",
    ),
    "JSON lines in a stated encoding": (
        "a.jsonl",
        b'{"text": "one"}\n{"text": "c\x81"}\n',
        {"encoding": "cp1252"},
        "text is not valid cp1252",
        "byte 0x81 does not decode in cp1252",
    ),
    "a lone surrogate": (
        "a.jsonl",
        b'{"text": "one"}\n{"text": "\\ud800"}\n',
        {},
        MALFORMED,
        "record 1: JSON parse error",
    ),
}


@pytest.mark.parametrize("case", FORMATS)
def test_each_format_counts_and_shows_it(case: str, tmp_path: Path, source: Any) -> None:
    name, data, keys, reason, shown = FORMATS[case]
    (tmp_path / name).write_bytes(data)
    stream = read(source(tmp_path / name, max_malformed=1.0, **keys))
    assert stream.tally.dropped == {reason: 1}
    assert shown in stream.tally.malformed[0]
    with pytest.raises(SourceError, match="max_malformed"):
        read(source(tmp_path / name, **keys))


def tally_of(*malformed: str, **dropped: int) -> Tally:
    names = {
        "null": "text is null",
        "invalid": "text is not valid UTF-8",
        "malformed": MALFORMED,
        "other": "not x >= 2",
    }
    tally = Tally.sum(Tally(malformed=[line]) for line in malformed)
    tally.drops.count_rows({names[key]: count for key, count in dropped.items()})
    return tally


def test_records_without_text_have_a_limit(source: Any) -> None:
    """Rows that `keep` rejects are no part of it: they may be most of the source."""
    keys = {"keep": {"x": ">= 2"}}
    check_encoded(source("a", **keys), 90, tally_of(null=10, other=900))
    with pytest.raises(SourceError) as caught:
        check_encoded(source("a", **keys), 80, tally_of(null=20, other=900))
    assert "20 of 1,000 records (20.00% of those that `keep` leaves) have no text, more than max_null = 0.1" in str(
        caught.value
    )
    assert "'text' is null or absent there. Is it the column of the text (`text`)? If so, set max_null = 0.2 " in str(
        caught.value
    )
    check_encoded(source("a", max_null=0.2, **keys), 80, tally_of(null=20, other=900))
    barely = Excess(19_998_001, 20_000_001)  # above 0.9999
    assert find_excess(*barely, barely.enough) is None


def test_build_and_plan_say_the_same(tmp_path: Path, recipe: Path, expected: dict[str, str], run_cli: Any) -> None:
    """With a tokenizer of its own no sample is drawn: the encode stage finds it. Nulls are counted after it."""
    tokenizer = {"file": str(recipe.parent / "set" / "tokenizer.json")}
    write_recipe(tmp_path / "r.toml", web("*.jsonl"), tokenizer=tokenizer, mix={"when_short": "shrink"})
    lines = [json.dumps({"text": f"Document {n} is about something."}) for n in range(40)]
    bad = b'{"text": "caf\xe9 au lait"}\n' * 2 + b'{"text": null}\n' * 5 + b'{"other": 1}\n' * 5
    (tmp_path / "a.jsonl").write_bytes("\n".join(lines).encode() + b"\n" + bad)
    stopped = build_here(tmp_path / "r.toml", tmp_path / "out", expect=2)["stderr"]
    assert "2 of 52 records (3.85% of those read so far) are malformed" in stopped
    assert run_cli("plan", "r.toml").stderr.endswith(stopped[stopped.index("error: ") :])
    keys = ["--set", "sources.web.max_malformed=0.05"]
    planned = run_cli("plan", "r.toml", *keys)
    assert planned.returncode == 0, planned.stderr
    assert "warning: the build would stop: source 'web': 10 of 52 records (19.23%" in planned.stdout
    stopped = build_here(tmp_path / "r.toml", tmp_path / "out", *keys, expect=2)["stderr"]
    assert "10 of 52 records (19.23%" in stopped
    built = build_here(tmp_path / "r.toml", tmp_path / "out", *keys, "--set", "sources.web.max_null=0.2")
    assert built["ran"]["encode"] == 0, "nothing is encoded again"
    assert built["sources"][0]["dropped"] == {"text is null": 10, "text is not valid UTF-8": 2}
    assert "2 of 52 records (3.85%) are malformed and dropped. Examples:\n  a.jsonl" in built["stderr"]
