"""Broken, mistyped and vanished data: every fault is found, named, and either counted or stops the build."""

# pyright: basic
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.sources import files
from pipeline.sources.base import SourceError
from tests.support.reading import files_source, list_spans_of, read_batches, rows_of, texts_of


def test_each_row_is_rejected_for_one_reason(tmp_path: Path):
    path, table = tmp_path / "a.parquet", {"x": [1, 1, 2, None, 2, 2], "y": [1, 2, None, 1, 1, 2]}
    pq.write_table(pa.table({"text": list("abcdef"), **table}), path)
    (batch,) = read_batches(files_source(path, keep={"x": ">= 2", "y": "== 2"}))
    assert batch.text.to_pylist() == ["f"]
    assert batch.rejected == {"not x >= 2": 2, "not x >= 2: null": 1, "not y == 2: null": 1, "not y == 2": 1}


def test_a_row_group_without_a_kept_row_leaves_its_text_alone(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x"] * 10, "score": [0] * 5 + [1] * 5}), path, row_group_size=5)
    batches = read_batches(files_source(path, keep={"score": "> 0"}))
    assert [(len(batch.text), batch.rows.tolist(), batch.rejected) for batch in batches] == [
        (0, [], {"not score > 0": 5}),
        (5, [5, 6, 7, 8, 9], {}),
    ]


def test_columns_of_json_lines(tmp_path: Path):
    """Those that are not asked for may hold anything; a dot leads into an object."""
    path = tmp_path / "a.jsonl"
    records = [{"m": {"t": f"text {i}", "s": i / 2, "more": {}}, "x": i if i % 2 else "s"} for i in range(9)]
    path.write_text("\n\n".join(json.dumps(record) for record in [*records, {"x": {}}, {"m": {"t": None, "s": 9}}]))
    batches = read_batches(files_source(path, text="m.t", keep={"m.s": ">= 2.5"}))
    assert texts_of(batches) == ["text 5", "text 6", "text 7", "text 8", None]
    assert rows_of(batches) == [5, 6, 7, 8, 10]


def test_a_file_that_changes_or_goes_away_stops(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("one--two")
    recipe = files_source(path, separator="--")
    (span,) = list_spans_of(recipe)
    path.write_text("one--two--three")
    with pytest.raises(
        SourceError, match=r"a\.txt: changed while the build was running; expected 8 bytes.*got 15 bytes"
    ):
        next(files.read_span(recipe, span))
    (span,) = list_spans_of(recipe)
    reading = files.read_span(recipe, span)
    next(reading)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match="changed while the build was running"):
        list(reading)
    path.unlink()
    with pytest.raises(SourceError, match=r"a\.txt"):
        next(files.read_span(recipe, span))
    with pytest.raises(SourceError, match="no file of"):
        list_spans_of(recipe)
