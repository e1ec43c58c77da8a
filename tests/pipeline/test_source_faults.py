"""Broken, mistyped and vanished data: every fault is found, named, and either counted or stops the build."""

# pyright: basic
from __future__ import annotations

import decimal
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.mix.block_lists import BlockList
from pipeline.sources import files
from pipeline.sources.base import SourceError
from pipeline.tokenizer.given_tokenizer import read_encoder_file
from shards.errors import InputError
from shards.eval_tasks.known import KNOWN_TASKS
from shards.eval_tasks.read import read_items
from shards.stores.files import PIPE
from tests.support.builds import list_spans_of

PREDICATES = [
    (">= 3", [1, 3, None, 5], [1, 3]),
    (">= 2.5", [1, 3, None, 2], [1]),
    ("== 3", [3.0, float("nan"), 3.5, None], [0]),
    ("!= 'en'", ["en", "fr", None, ""], [1, 3]),
    ("== true", [True, False, None, True], [0, 3]),
    (["en", "fr"], ["en", "de", None, "fr"], [0, 3]),
    ("> 1", [decimal.Decimal("0.5"), decimal.Decimal("1.5"), None, decimal.Decimal(1)], [1]),
]


def forms_of(values: list[Any]) -> list[str]:
    """Return the forms that a column of these values can have."""
    json_ = not any(isinstance(value, decimal.Decimal) or value != value for value in values)
    text = isinstance(values[0], str)
    return ["parquet", *(["jsonl"] if json_ else []), *(["dictionary", "string_view"] if text else [])]


@pytest.mark.parametrize(
    ("form", "condition", "values", "kept"), [(form, *case) for case in PREDICATES for form in forms_of(case[1])]
)
def test_predicates_and_nulls(
    form: str, condition: Any, values: list[Any], kept: list[int], tmp_path: Path, source: Any
) -> None:
    texts = [f"text {index}" for index in range(len(values))]
    if form == "jsonl":
        records = [{"text": text, "c": value} for text, value in zip(texts, values, strict=True)]
        (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(record) for record in records))
    else:
        column = pa.array(values)
        column = column.dictionary_encode() if form == "dictionary" else column
        column = column.cast(pa.string_view()) if form == "string_view" else column
        pq.write_table(pa.table({"text": texts, "c": column}), tmp_path / "a.parquet")
    recipe = source(tmp_path / "a.*", keep={"c": condition})
    batches = [batch for span in list_spans_of(recipe) for batch in files.read_span(recipe, span)]
    assert [row for batch in batches for row in batch.rows.tolist()] == kept
    assert [text for batch in batches for text in batch.text.to_pylist()] == [texts[row] for row in kept]
    rejected = sum((Counter(batch.rejected) for batch in batches), Counter[str]())
    assert sum(rejected.values()) + len(kept) == len(values)
    assert sum(n for reason, n in rejected.items() if reason.endswith(": null")) == sum(
        value is None for value in values
    )


def test_each_row_is_rejected_for_one_reason(tmp_path: Path, source: Any, write_parquet: Any) -> None:
    path = write_parquet(tmp_path / "a.parquet", list("abcdef"), x=[1, 1, 2, None, 2, 2], y=[1, 2, None, 1, 1, 2])
    recipe = source(path, keep={"x": ">= 2", "y": "== 2"})
    (batch,) = [batch for span in list_spans_of(recipe) for batch in files.read_span(recipe, span)]
    assert batch.text.to_pylist() == ["f"]
    assert batch.rejected == {"not x >= 2": 2, "not x >= 2: null": 1, "not y == 2: null": 1, "not y == 2": 1}


def test_a_row_group_without_a_kept_row_leaves_its_text_alone(tmp_path: Path, source: Any, write_parquet: Any) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["x"] * 10, row_group_size=5, score=[0] * 5 + [1] * 5)
    recipe = source(path, keep={"score": "> 0"})
    batches = [batch for span in list_spans_of(recipe) for batch in files.read_span(recipe, span)]
    assert [(len(batch.text), batch.rows.tolist(), batch.rejected) for batch in batches] == [
        (0, [], {"not score > 0": 5}),
        (5, [5, 6, 7, 8, 9], {}),
    ]


def test_dotted_columns_of_json_lines(tmp_path: Path, source: Any, read_all: Any) -> None:
    records = [{"m": {"t": f"text {i}", "s": i / 2, "more": {}}, "x": i if i % 2 else "s"} for i in range(9)]
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps(record) for record in records))
    size = (tmp_path / "a.jsonl").stat().st_size
    rows = read_all(source(tmp_path / "a.jsonl", text="m.t", keep={"m.s": ">= 2.5"}))
    assert rows == [(f"a.jsonl@#b0-{size}", i, f"text {i}") for i in range(5, 9)]


def test_columns_that_are_not_asked_for_may_hold_anything(tmp_path: Path, source: Any, read_all: Any) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a", "x": 1}\n{"text": "b", "x": "y"}\n{"x": {}, "text": null}\n{"x": 1}'
    )
    assert [text for _, _, text in read_all(source(tmp_path / "a.jsonl"))] == ["a", "b", None, None]


def test_a_file_that_changes_or_goes_away_stops(tmp_path: Path, source: Any) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one--two")
    recipe = source(path, separator="--")
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
    with pytest.raises(SourceError, match="no longer match any file"):
        list_spans_of(recipe)


@pytest.mark.parametrize("is_pipe", [True, False])
def test_a_pipe_or_a_file_beyond_memory_is_named(is_pipe: bool, tmp_path: Path) -> None:
    file = tmp_path / "x"
    os.mkfifo(file) if is_pipe else file.touch()
    if not is_pipe:
        os.truncate(file, 3 << 30)
    found = "cannot be read: " + (PIPE if is_pipe else "it has 3,221,225,472 bytes, more than ")
    with pytest.raises(InputError, match=f"x: {found}"):
        read_items(KNOWN_TASKS["arc_easy"], files=[file])
    with pytest.raises(InputError, match=f"x: {found}"):
        read_encoder_file(file, eos_token="")
    with pytest.raises(InputError, match=f"x: {found if is_pipe else '.*; line 5 is '}"):  # not one line of 3 GB
        BlockList("x", file).read()
