"""Malformed records of JSON lines: the first stops a build, or a share of them is dropped, counted and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.clean.documents import DocumentStream
from pipeline.sources import files
from pipeline.sources.base import MALFORMED, SourceError, make_units
from tests.support.builds import list_spans_of

BAD = [b'{"text": ', b"[1]", b'{"text": 1}', b"not json", b'{"text": "x', b"7", b'{"text": "\x00"}']


def write_lines(path: Path, number: int, bad: dict[int, bytes]) -> list[str]:
    """Write records with malformed ones among them; return the texts of the others."""
    texts = [f"document {n} " + " ".join(str(n * k % 97) for k in range(40)) for n in range(number)]
    lines = [bad.get(n, json.dumps({"text": text}).encode()) for n, text in enumerate(texts)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return [text for n, text in enumerate(texts) if n not in bad]


def test_a_file_of_nothing_else_is_refused(tmp_path: Path, source: Any) -> None:
    write_lines(tmp_path / "a.jsonl", 3, dict(enumerate(BAD[:3])))
    with pytest.raises(SourceError, match="all are malformed"):
        list_spans_of(source(tmp_path / "a.jsonl", max_malformed=1.0))


def test_units_do_not_change_what_is_counted_and_left(tmp_path: Path, source: Any) -> None:
    texts = write_lines(tmp_path / "a.jsonl", 400, {n: BAD[n % 7] for n in range(0, 400, 9)})
    recipe = source(tmp_path / "a.jsonl", max_malformed=1.0)
    for unit_bytes in (1 << 10, 1 << 14, 1 << 28):
        spans = files.list_spans(recipe, files.list_files(recipe), unit_bytes)
        streams = [stream := DocumentStream(recipe, unit.spans) for unit in make_units(0, spans)]
        assert [bytes(text).decode() for stream in streams for _, docs in stream for text in docs] == texts
        assert sum(stream.tally.dropped[MALFORMED] for stream in streams) == 400 - len(texts) == 45
    assert len(stream.tally.malformed) == 3
    assert stream.tally.malformed[0].startswith("a.jsonl: record 0: ")
    assert "{" in stream.tally.malformed[0], "the record is shown"
