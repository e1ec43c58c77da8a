"""Malformed records of JSON lines: the first stops a build, or a share of them is dropped, counted and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.sources.base import MALFORMED, SourceError, make_units
from pipeline.sources.formats import byte_io
from tests.support.builds import list_spans_of

BAD = [b'{"text": ', b"[1]", b'{"text": 1}', b"not json", b'{"text": "x', b"7", b'{"text": "\x00"}']


def write_lines(path: Path, number: int, bad: dict[int, bytes]) -> list[str]:
    """Write records with malformed ones among them; return the texts of the others."""
    texts = [f"document {n} " + " ".join(str(n * k % 97) for k in range(40)) for n in range(number)]
    lines = [bad.get(n, json.dumps({"text": text}).encode()) for n, text in enumerate(texts)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return [text for n, text in enumerate(texts) if n not in bad]


@pytest.mark.parametrize("block", [200, 5_000, 8 << 20])
def test_the_others_are_read_with_their_rows(
    block: int, tmp_path: Path, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.clean.documents import DocumentStream

    monkeypatch.setattr(byte_io, "BATCH_BYTES", block)
    bad = dict(zip([0, 1, 17, 18, 19, 250, 299], BAD, strict=True))
    texts = write_lines(tmp_path / "a.jsonl", 300, bad)
    recipe = source(tmp_path / "a.jsonl", max_malformed=0.5)
    stream = DocumentStream(recipe, list_spans_of(recipe))
    read = [
        (row, bytes(text).decode()) for _, docs in stream for row, text in zip(docs.rows.tolist(), docs, strict=True)
    ]
    assert read == list(zip((n for n in range(300) if n not in bad), texts, strict=True))
    assert stream.tally.dropped == {MALFORMED: 7}
    assert len(stream.tally.malformed) == 3
    assert stream.tally.malformed[0].startswith("a.jsonl: record 0: ")
    assert "{" in stream.tally.malformed[0], "the record is shown"


def test_a_file_of_nothing_else_is_refused(tmp_path: Path, source: Any) -> None:
    write_lines(tmp_path / "a.jsonl", 3, dict(enumerate(BAD[:3])))
    with pytest.raises(SourceError, match="all are malformed"):
        list_spans_of(source(tmp_path / "a.jsonl", max_malformed=1.0))


def test_units_do_not_change_the_count(tmp_path: Path, source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.clean.documents import DocumentStream
    from pipeline.sources import files

    write_lines(tmp_path / "a.jsonl", 400, {n: BAD[n % 7] for n in range(0, 400, 9)})
    recipe = source(tmp_path / "a.jsonl", max_malformed=1.0)
    counts: set[int] = set()
    for unit_bytes in (1 << 10, 1 << 14, 1 << 28):
        spans = files.list_spans(recipe, files.list_files(recipe), unit_bytes)
        streams = [DocumentStream(recipe, unit.spans) for unit in make_units(0, spans)]
        documents = sum(len(docs) for stream in streams for _, docs in stream)
        counts.add(documents)
        assert sum(stream.tally.dropped[MALFORMED] for stream in streams) == 400 - documents
    assert counts == {355}
