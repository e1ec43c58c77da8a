"""Broken, mistyped and vanished data: every fault is found, named, and either counted or stops the build."""

# pyright: basic
from __future__ import annotations

import datetime
import decimal
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
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


def resolve_error(recipe: Any) -> str:
    with pytest.raises(SourceError) as caught:
        list_spans_of(recipe)
    return str(caught.value)


def test_missing_column_says_which_exist(tmp_path: Path, source: Any, write_parquet: Any) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["x"], meta=[{"score": 1}])
    message = resolve_error(source(path, text="content"))
    assert "a.parquet: no column 'content'; there are text, meta, meta.score" in message
    message = resolve_error(source(path, keep={"scroe": "> 1", "meta.scroe": "> 1"}))
    assert "no column 'scroe' for `keep`; there are text, meta, meta.score" in message
    assert "no column 'meta.scroe'" in message
    (tmp_path / "a.jsonl").write_text('{"body": "x", "meta": {"score": 1}}\n')
    assert "a.jsonl: no column 'text' in its first records; there are body, meta, meta.score" in resolve_error(
        source(tmp_path / "a.jsonl")
    )


CHAT = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("keys", [{"text": "messages.content"}, {"text": "messages"}, {"keep": {"messages": "> 1"}}])
def test_a_list_is_no_text(name: str, keys: dict[str, Any], tmp_path: Path, source: Any) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": CHAT, "text": "x"}) + "\n")
    pq.write_table(pa.table({"messages": [CHAT], "text": ["x"]}), tmp_path / "a.parquet")
    message = resolve_error(source(tmp_path / name, **keys))
    assert "column 'messages" in message
    assert "list" in message
    assert f"by `{next(iter(keys))}`." in message or "Correct `text`" in message
    assert "Repair" not in message


def test_a_column_whose_name_is_also_a_path_is_ambiguous(tmp_path: Path, source: Any) -> None:
    columns = {"content.body": ["a"], "content": [{"body": "b"}], "other.body": ["c"], "other": ["d"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    message = resolve_error(source(tmp_path / "a.parquet", text="content.body"))
    assert "'content.body' is a column, and also a field of another one. Rename" in message
    list_spans_of(source(tmp_path / "a.parquet", text="other.body"))


MISTYPED = [
    (">= 3", "text"),
    ("== 'x'", 1),
    (["x"], 1),
    ([1], "text"),
    (">= 2020-13-01", datetime.datetime(2020, 1, 1)),
    ("== 1", True),
    ("== 'x'", {"x": 1}),
    (">= soon", datetime.date(2020, 1, 1)),
    (">= 2020-01-01T12:00:00", datetime.date(2020, 1, 1)),
    (">= 2020-01-01T12:00:00+01:00", datetime.datetime(2020, 1, 1)),
    (">= 3", datetime.datetime(2020, 1, 1)),
    (">= 1600-01-01", np.datetime64("2020-01-01", "ns")),  # before the first that the type has
    ("== 10:00", datetime.time(10)),
]


@pytest.mark.parametrize(("condition", "value"), MISTYPED)
def test_mistyped_predicate_is_found_before_the_work(
    condition: Any, value: Any, tmp_path: Path, source: Any, write_parquet: Any
) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["x"], column=[value])
    assert isinstance(value, str) or "a.parquet: column 'column' is" in resolve_error(source(path, text="column"))
    message = resolve_error(source(path, keep={"column": condition}))
    assert "a.parquet: column 'column' is" in message
    assert "cannot test" in message


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
    assert rejected["c is null"] == sum(value is None for value in values)


def test_each_row_is_rejected_for_one_reason(tmp_path: Path, source: Any, write_parquet: Any) -> None:
    path = write_parquet(tmp_path / "a.parquet", list("abcdef"), x=[1, 1, 2, None, 2, 2], y=[1, 2, None, 1, 1, 2])
    recipe = source(path, keep={"x": ">= 2", "y": "== 2"})
    (batch,) = [batch for span in list_spans_of(recipe) for batch in files.read_span(recipe, span)]
    assert batch.text.to_pylist() == ["f"]
    assert batch.rejected == {"not x >= 2": 2, "x is null": 1, "y is null": 1, "not y == 2": 1}


def test_a_row_group_without_a_kept_row_leaves_its_text_alone(tmp_path: Path, source: Any, write_parquet: Any) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["x"] * 10, row_group_size=5, score=[0] * 5 + [1] * 5)
    recipe = source(path, keep={"score": "> 0"})
    batches = [batch for span in list_spans_of(recipe) for batch in files.read_span(recipe, span)]
    assert [(len(batch.text), batch.rows.tolist(), batch.rejected) for batch in batches] == [
        (0, [], {"not score > 0": 5}),
        (5, [5, 6, 7, 8, 9], {}),
    ]


def test_a_folder_of_mixed_schemas_names_all_bad_files(tmp_path: Path, source: Any, write_parquet: Any) -> None:
    write_parquet(tmp_path / "good.parquet", ["x"])
    pq.write_table(pa.table({"content": ["x"]}), tmp_path / "other.parquet")
    pq.write_table(pa.table({"text": [1]}), tmp_path / "typed.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no PAR1")
    (tmp_path / "list.jsonl").write_bytes(b"[1]\n")
    message = resolve_error(source(tmp_path / "*.*"))
    bad = ["broken.parquet", "list.jsonl", "other.parquet"]
    assert [line.split(": ")[1] for line in message.splitlines()] == [*bad, "typed.parquet"]


def test_columns_that_are_not_asked_for_may_hold_anything(tmp_path: Path, source: Any, read_all: Any) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a", "x": 1}\n{"text": "b", "x": "y"}\n{"x": {}, "text": null}\n{"x": 1}'
    )
    assert [text for _, _, text in read_all(source(tmp_path / "a.jsonl"))] == ["a", "b", None, None]


@pytest.mark.parametrize("keep", [{"text.more": "> 1"}, {"m": "> 1", "m.x": "> 1"}])
def test_a_column_that_is_value_and_part(keep: dict[str, Any], tmp_path: Path, source: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "m": {"x": 1}}\n')
    assert "cannot be a value and a part of another column" in resolve_error(source(tmp_path / "a.jsonl", keep=keep))


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
    assert "no longer match any file" in resolve_error(recipe)


def test_a_file_name_that_is_not_utf8(tmp_path: Path, source: Any) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff.txt", "wb") as file:
        file.write(b"x")
    assert "is not UTF-8; rename the file" in resolve_error(source(tmp_path / "*.txt", separator="--"))


def test_of_many_broken_files_the_first_are_told_and_the_others_counted(tmp_path: Path, source: Any) -> None:
    for number in range(50):
        (tmp_path / f"{number:02}.parquet").write_bytes(b"none")
    message = resolve_error(source(tmp_path / "*.parquet"))
    assert message.count("not a whole parquet file") == 21
    assert "source 's': the last of 30 more: 49.parquet: not a whole" in message


@pytest.mark.parametrize("command", ["plan FILE", "build FILE --out out", "train FILE --shards out --run run"])
@pytest.mark.parametrize("place", ["pipe", "device"])
def test_a_pipe_or_a_device_is_no_recipe(command: str, place: str, tmp_path: Path, run_cli: Any) -> None:
    file = tmp_path / "r.toml"
    os.mkfifo(file) if place == "pipe" else file.symlink_to("/dev/zero")
    done = run_cli(*command.replace("FILE", str(file)).split())
    assert f"{file}: cannot be read: a pipe or a device; expected a regular file. " in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("place", ["tokenizer.file", "sources.web.paths", "evaluations.known.paths"])
def test_a_pipe_is_no_tokenizer_source_or_evaluation(place: str, tmp_path: Path, run_cli: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    names = {name: f"{name}.jsonl" for name in ("tokenizer.file", "sources.web.paths", "evaluations.known.paths")}
    tokenizer, source, evaluation = (names | {place: "pipe"}).values()
    (tmp_path / "r.toml").write_text(
        f"[[sources]]\nname = 'web'\npaths = ['{source}']\n[[evaluations]]\nname = 'known'\npaths = ['{evaluation}']\n"
        f"[tokenizer]\nfile = '{tokenizer}'\n"
    )
    done = run_cli("plan", str(tmp_path / "r.toml"))
    assert re.search(f"{place}: '\\S*pipe' is a pipe or a device; expected a regular file. ", done.stderr), done.stderr
    assert done.returncode == 2


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
