"""Columns to carry: what a recipe may say, the types that files give, and what is refused before encoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.encode.run import Run, RunResult
from pipeline.encode.run_carried import write_carried
from pipeline.engine.receipts import write_receipt
from pipeline.recipe.read import read_recipe
from pipeline.sources.base import SourceError
from pipeline.sources.kinds import list_files, list_spans, read_span
from pipeline.sources.selection import open_sources
from pipeline.sources.span_cache import SpanCache
from shards.errors import InputError
from shards.format.carried import arrow_type
from shards.stores.store import FolderStore
from tokenmill.__main__ import main

RECIPE = """
name = "small"
[[sources]]
name = "web"
paths = ["{paths}"]
weight = 1
{keys}
[tokenizer]
vocab_size = 300
"""


def recipe_of(folder: Path, paths: str, keys: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(paths=paths, keys=keys))
    return path


def carried_of(folder: Path, paths: str, keys: str) -> dict[str, str]:
    """Return the types with which the recipe's only source carries its columns."""
    recipe = read_recipe(recipe_of(folder, paths, keys))
    return dict(open_sources(recipe)[0].carried)


def write_parquet(path: Path, **columns: Any) -> None:
    first = next(iter(columns.values()))
    pq.write_table(pa.table({"text": ["some text"] * len(first), **columns}), path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('carry = ["hash"]', "'hash': the document tables have columns of their own"),
        ('carry = ["Source"]', "columns of their own"),
        ('carry = ["input_ids: int64"]', "columns of their own"),
        ('carry = ["url", "url: string"]', "'url' is listed more than once"),
        ('carry = ["url", "URL"]', "in case alone"),
        ('carry = ["url: text"]', "expected the name of a column, or NAME: TYPE"),
        ('carry = [""]', "printable characters"),
        ('carry = ["text"]', "'text' is the text itself"),
        ('carry = ["x"]\ncontent = "software-heritage"', "what is fetched keeps no column"),
    ],
)
def test_a_recipe_with_wrong_columns_is_refused(tmp_path: Path, keys: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_recipe(recipe_of(tmp_path, "*.parquet", keys))


def test_parquet_types_become_four(tmp_path: Path) -> None:
    write_parquet(
        tmp_path / "a.parquet",
        plain=pa.array(["x"]),
        view=pa.array(["x"], pa.string_view()),
        word=pa.array(["x"]).dictionary_encode(),
        small=pa.array([1], pa.uint8()),
        half=pa.array([1.5], pa.float32()),
        flag=pa.array([True]),
        nested=pa.array([{"id": 1, "deep": {"url": "u"}}]),
    )
    names = ["plain", "view", "word", "small", "half", "flag", "nested.id", "nested.deep.url"]
    found = carried_of(tmp_path, "*.parquet", f"carry = {json.dumps(names)}")
    types = ["string", "string", "string", "int64", "float64", "bool", "int64", "string"]
    assert found == dict(zip(names, types, strict=True))
    recipe = read_recipe(tmp_path / "recipe.toml")
    (selection,) = open_sources(recipe)
    (batch,) = read_span(recipe.sources[0], selection.units[0].spans[0], selection.carried)
    assert batch.carried is not None
    assert batch.carried.to_pylist() == [dict(zip(names, ["x", "x", "x", 1, 1.5, True, 1, "u"], strict=True))]
    (batch,) = read_span(recipe.sources[0], selection.units[0].spans[0])
    assert batch.carried is None


@pytest.mark.parametrize(
    ("columns", "keys", "message"),
    [
        ({"score": [[1]]}, '["link"]', "a.parquet: no column 'link' for `carry`; there are text, score"),
        ({"score": [[1]]}, '["score"]', "a.parquet: column 'score' of `carry` is list<element: int64>; expected text"),
        ({"meta": [{"a": 1}]}, '["meta"]', "name a part of it with a dot"),
        ({"when": pa.array([0], pa.timestamp("s"))}, '["when"]', "'when' of `carry` is timestamp"),
        ({"data": [b"x"]}, '["data"]', "'data' of `carry` is binary"),
        ({"none": pa.nulls(1)}, '["none"]', 'State it: `"none: string"`'),
        ({"url": ["x"]}, '["url: int64"]', "is string; expected int64 as in `carry`"),
        ({"score": [1.5]}, '["score: int64"]', "is float64; expected int64"),
    ],
)
def test_columns_of_no_use_are_refused_by_plan(
    tmp_path: Path, columns: dict[str, Any], keys: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parquet(tmp_path / "a.parquet", **columns)
    assert main(["plan", str(recipe_of(tmp_path, "*.parquet", f"carry = {keys}"))]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_two_types_in_two_files_are_refused_unless_one_is_stated(tmp_path: Path, ending: str) -> None:
    for name, value in (("a", 1), ("b", 1.5), ("c", None)):
        rows = [{"text": "some text", "score": value}]
        if ending == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
        else:
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SourceError) as raised:
        carried_of(tmp_path, f"*.{ending}", 'carry = ["score"]')
    expected = f"b.{ending}: column 'score' of `carry` is float64; expected int64 as in a.{ending}. State the type, "
    assert f'{expected}`"score: float64"`' in str(raised.value)
    assert carried_of(tmp_path, f"*.{ending}", 'carry = ["score: float64"]') == {"score": "float64"}
    (tmp_path / f"b.{ending}").unlink()
    assert carried_of(tmp_path, f"*.{ending}", 'carry = ["score"]') == {"score": "int64"}


def test_a_column_of_the_set_has_one_type_over_its_sources(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", id=[1])
    write_parquet(tmp_path / "b.parquet", id=["one"])
    first, second = (RECIPE.format(paths=f"{n}.parquet", keys='carry = ["id"]') for n in "ab")
    second = second[second.index("[[") : second.index("[tok")].replace('"web"', '"books"')
    path = tmp_path / "recipe.toml"
    path.write_text(first.replace("[tokenizer]", f"{second}[tokenizer]"))
    with pytest.raises(SourceError, match="source 'books': column 'id' of `carry` is string, and int64 in 'web'"):
        open_sources(read_recipe(path))
    path.write_text(path.read_text().replace('["id"]', '["id: string"]'))
    assert [selection.carried for selection in open_sources(read_recipe(path))] == [(("id", "string"),)] * 2


@pytest.mark.parametrize(
    ("records", "keys", "message"),
    [
        ([{"id": 1}, {"id": "one"}], '["id"]', "holds int64 and string in its first records"),
        ([{"other": 1}], '["id"]', "no column 'id' for `carry` in its first records"),
        ([{"id": [1]}], '["id"]', "'id' of `carry` is array"),
        ([{"id": 2**64}], '["id"]', "is integer beyond 64 bits"),
        ([{"id": None}], '["id"]', 'State it: `"id: string"`'),
        ([{"id": 7}], '["id: string"]', "holds numbers, which JSON lines do not give as text"),
    ],
)
def test_json_lines_with_other_values_are_refused(
    tmp_path: Path, records: list[dict[str, Any]], keys: str, message: str
) -> None:
    lines = [json.dumps({"text": "some text", **record}) + "\n" for record in records]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    with pytest.raises(SourceError) as raised:
        carried_of(tmp_path, "*.jsonl", f"carry = {keys}")
    assert message in str(raised.value)


def test_json_lines_with_another_type_further_on_name_the_record(tmp_path: Path) -> None:
    filler = "some text " * 50
    rows = [{"text": filler, "score": 1 if index < 190 else 1.5} for index in range(200)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = read_recipe(recipe_of(tmp_path, "*.jsonl", 'carry = ["score"]\nkeep = { score = ">= 1" }'))
    (selection,) = open_sources(recipe)
    with pytest.raises(SourceError, match=r"a.jsonl: record 190: .*1\.5"):
        list(read_span(recipe.sources[0], selection.units[0].spans[0], selection.carried))
    stated = (("score", "float64"),)
    (batch,) = read_span(recipe.sources[0], selection.units[0].spans[0], stated)
    assert batch.carried is not None
    assert batch.carried["score"].to_pylist() == [1.0] * 190 + [1.5] * 10


def test_text_without_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("some text")
    with pytest.raises(SourceError, match="is read as file and has no columns; `carry` of 'web' needs"):
        carried_of(tmp_path, "*.md", 'carry = ["url"]')


def test_text_that_is_not_utf8_is_refused_with_its_file(tmp_path: Path) -> None:
    broken = pa.array([b"\xff"], pa.binary()).view(pa.string())
    write_parquet(tmp_path / "a.parquet", url=broken)
    recipe = read_recipe(recipe_of(tmp_path, "*.parquet", 'carry = ["url"]'))
    (selection,) = open_sources(recipe)
    with pytest.raises(SourceError, match=r"a\.parquet: column 'url' of `carry` holds a value that is not string"):
        list(read_span(recipe.sources[0], selection.units[0].spans[0], selection.carried))


def test_kept_spans_keep_the_types(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", url=["x"])
    (source,) = read_recipe(recipe_of(tmp_path, "*.parquet", 'carry = ["url"]')).sources
    files = list_files(source)
    kept = SpanCache(FolderStore(tmp_path))
    first = kept.list_spans(source, files)
    kept.save()
    assert first[0].carried == ("string",)
    assert first[0].carried_bytes > 0
    (tmp_path / "a.parquet").unlink()  # the kept ones do not open it
    assert SpanCache(FolderStore(tmp_path)).list_spans(source, files) == first
    plain = source.model_copy(update={"carry": []})
    write_parquet(tmp_path / "a.parquet", url=["x"])
    (span,) = list_spans(plain, list_files(plain))
    assert (span.stored_bytes, span.to_json()) != (0, "")
    assert (span.carried, span.carried_bytes, span.stored_bytes) == ((), 0, first[0].stored_bytes)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXT,
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
}


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_run_gives_back_the_values_of_any_of_its_documents(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kinds: list[Any] = data.draw(st.lists(st.sampled_from(list(STRATEGIES)), min_size=1, max_size=4))
    columns = tuple((f"c{number}", kind) for number, kind in enumerate(kinds))
    number = data.draw(st.integers(0, 12))
    rows = [{name: data.draw(st.none() | STRATEGIES[kind]) for name, kind in columns} for _ in range(number)]
    schema = pa.schema([pa.field(name, arrow_type(kind)) for name, kind in columns])
    cut = data.draw(st.integers(0, number))
    parts = [pa.Table.from_pylist(own, schema=schema) for own in (rows[:cut], rows[cut:])]
    order = np.array(data.draw(st.permutations(range(number))), np.int64)
    folder = tmp_path_factory.mktemp("run")
    files = write_carried(folder, parts, columns, order)
    write_receipt(folder, RunResult(documents=number, carried=columns, files=files))
    run = Run(str(folder), 0, "<u2")
    assert run.carried == columns
    first = data.draw(st.integers(0, number))
    last = data.draw(st.integers(first, number))
    chosen = sorted(data.draw(st.sets(st.integers(0, max(0, last - first - 1))))) if last > first else []
    taken = run.read_carried(first, last).take(np.array(chosen, np.int64))
    expected = [rows[order[first + index]] for index in chosen]
    for name, kind in columns:
        taken[name].validate(full=True)
        assert taken[name].type == arrow_type(kind)
        assert taken[name].to_pylist() == [row[name] for row in expected]
