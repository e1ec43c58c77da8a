"""Sources: the same documents through every format, and every kind of broken file by its name."""

# pyright: basic
from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.sources import base
from pipeline.sources.base import SourceError
from tests.support.builds import list_spans_of


def test_dotted_columns_of_json_lines(tmp_path: Path, source: Any, read_all: Any) -> None:
    records = [{"m": {"t": f"text {i}", "s": i / 2, "more": {}}, "x": i if i % 2 else "s"} for i in range(9)]
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps(record) for record in records))
    size = (tmp_path / "a.jsonl").stat().st_size
    rows = read_all(source(tmp_path / "a.jsonl", text="m.t", keep={"m.s": ">= 2.5"}))
    assert rows == [(f"a.jsonl@#b0-{size}", i, f"text {i}") for i in range(5, 9)]
    (tmp_path / "a.jsonl").write_text('{"m.t": "text"}\n')
    with pytest.raises(SourceError, match=r"'m\.t' is one key with a dot in its name"):
        list_spans_of(source(tmp_path / "a.jsonl", text="m.t"))


@pytest.mark.parametrize("name", ["a.md", 'a"b\\.md', "übung 日本\n\t\x7f\u2028.txt", ""])
def test_the_json_of_a_span_has_all_its_fields(name: str) -> None:
    spans = [
        base.Span(f"/d/{name}", name, "1 bytes", "file", "file", 0, 7, 8, 1, 9),
        base.Span(f"hf://{name}", name, "etag", "parquet", "rg", 3, 4, 1 << 40, None, 0, "0" * 40),
        base.Span(f"/d/{name}", name, "v", "documents", "b", 0, 1, 1, 1, 1, name),
    ]
    expected = [asdict(span) | ({"url": ""} if span.format == "documents" else {}) for span in spans]
    text = json.dumps(expected, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert base.spans_to_json(spans) == text


def test_units_of_small_files_and_large_ones() -> None:
    def span(index: int, size: int) -> base.Span:
        return base.Span(f"/{index}", f"{index}", "v", "file", "file", 0, size, size, 1, size)

    spans = [span(index, 5 << 20) for index in range(7)] + [span(7, 300 << 20), span(8, 0)]
    units = base.make_units(3, spans)
    assert [span for unit in units for span in unit.spans] == spans
    assert [len(unit.spans) for unit in units] == [3, 3, 1, 1, 1]
    assert {unit.source for unit in units} == {3}
    assert json.loads(base.spans_to_json(units[0].spans))[0]["url"] == "/0"
