"""Predicates: the rows that a condition keeps, of columns of any type and form. The golden file has what is refused."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import datetime
import json
import math
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.recipe.predicates import parse_predicate
from pipeline.sources.base import SourceError
from pipeline.sources.files import list_files
from tests.support.reading import files_source, read_batches, rows_of, texts_of
from tests.support.recipes import write_file

JSON = "json"
"""In the place of a type: the values are also written as JSON lines; Arrow chooses the type in Parquet."""
DAYS = [datetime.date(2020, 1, 1) + datetime.timedelta(days=day) for day in range(3)]
NOONS = [datetime.datetime(2020, 1, 1, 12) + datetime.timedelta(hours=hour) for hour in range(3)]
TIMES = [time.replace(tzinfo=datetime.UTC) for time in NOONS]
LARGE = [2**63 - 1, 2**63, 2**64 - 1]
SMALL = [-(2**63), 0, 2**53 + 1]
UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("condition", "values", "kind", "held"),
    [
        (">= 3", [1, 3, 5], JSON, "-++"),
        ("<2.5", [1, 3, 2], JSON, "+-+"),
        ("> -1e3", [-1000, 3, 5], JSON, "-++"),
        ("== 3", [3.0, float("nan"), 3.5], None, "+--"),
        ([1, 2.5], [1, 2, 3], JSON, "+--"),
        ("!= 'en'", ["en", "fr", ""], JSON, "-++"),
        ('  !=  "a b" ', ["a b", "ab", ""], JSON, "-++"),
        ("== en", ["en", "fr", ""], JSON, "+--"),
        ("== '3'", ["3", "03", "3.0"], JSON, "+--"),
        (["en", "fr"], ["en", "de", "fr"], JSON, "+-+"),
        ("== true", [True, False, True], JSON, "+-+"),
        ([True], [True, False, True], JSON, "+-+"),
        ("> 1", [Decimal("0.5"), Decimal("1.5"), Decimal(1)], None, "-+-"),
        ("<= 0.57", [Decimal("0.57"), Decimal("0.60"), Decimal("0.1")], pa.decimal128(4, 2), "+-+"),
        ("== 0.57", [0.57, 0.6, 0.1], pa.float64(), "+--"),
        (
            "> 12345678901234567890.11",
            [Decimal("12345678901234567890.12"), Decimal("12345678901234567890.11"), Decimal(1)],
            pa.decimal128(30, 2),
            "+--",
        ),
        ("== 9007199254740993.0", [2**53, 2**53 + 1, 0], pa.int64(), "-+-"),
        ("< 1e400", [1.0, 1e300, math.inf], pa.float64(), "++-"),
        ("> 1e-99999999999999999999", ["0", "1", "2"], None, "--+"),
        ("<= 1e17", [1.0, math.nan, 1e18], pa.float64(), "+--"),
        ("!= 1e17", [1.0, math.nan, 1e17], pa.float64(), "++-"),
        (f">= {2**63}", LARGE, pa.uint64(), "-++"),
        (f"== {2**64 - 1}", LARGE, pa.uint64(), "--+"),
        ("> -1", LARGE, pa.uint64(), "+++"),
        ("<= 1.5", LARGE, pa.uint64(), "---"),
        ([2**63, -1, 1e30], LARGE, pa.uint64(), "-+-"),
        (f"> {2**53}", SMALL, pa.int64(), "--+"),
        ("> 9007199254740992.0", SMALL, pa.int64(), "--+"),
        ("< 0.5", SMALL, pa.int64(), "++-"),
        (">= -0.5", SMALL, pa.int64(), "-++"),
        ("== 0.5", SMALL, pa.int64(), "---"),
        ("!= 0.5", SMALL, pa.int64(), "+++"),
        (f"< {10**30}", SMALL, pa.int64(), "+++"),
        (">= 300", [1, 2, 255], pa.uint8(), "---"),
        (f"> {2**53 + 1}", [2.0**53, 2.0**53 + 2, math.inf], pa.float64(), "-++"),
        (f">= {2**63}", [1.0, 2.0**63, -math.inf], pa.float32(), "-+-"),
        (f">= {2**63}", [1, 2**63, 2**80], pa.decimal128(38, 2), "-++"),
        ([2**63, 2], [1, 2**63, 2], pa.decimal128(38, 2), "-++"),
        (">= 2020-01-02", DAYS, pa.date32(), "-++"),
        (["2020-01-01", "2020-01-03"], DAYS, pa.date64(), "+-+"),
        ("< 2020-01-01T13:00:00", TIMES, UTC, "+--"),
        ("== 2020-01-01T15:00:00+01:00", TIMES, UTC, "--+"),
        ("> 2020-01-01T12:00:00", NOONS, pa.timestamp("ns"), "-++"),
        (">= 9999-12-31", NOONS, pa.timestamp("ns"), "---"),
        ("> 0001-01-01", NOONS, pa.timestamp("ns"), "+++"),
        (">= 2020-01-01T12:30:00.5", NOONS, pa.timestamp("s"), "-++"),
        (">= 2020-01-01T14:00:00+01:00", NOONS, pa.timestamp("ms"), "-++"),
        ("> 2020-01-01T12:00:00", DAYS, pa.date32(), "-++"),
        (["2020-01-01T01:00:00+01:00"], DAYS, pa.date64(), "+--"),
        ("< 2020-01-01T13:00:00", TIMES, pa.timestamp("s", "Europe/Paris"), "+--"),
        (">= 2020-01-31", ["2020-01-31T00:30:00+02:00", "2020-01-31", "2020-01-30T23:30:00-01:00"], JSON, "-++"),
        ("< '2020-01-31 00:00+01'", ["2020-01-30T22:59:59.9999999Z", "2020-01-31 00:00+01", "2020-02"], JSON, ""),
        ("< '2020-01-31 00:00+01'", ["2020-01-30T22:59:59.9999999Z", "20200131", "2020-01-31 00+01"], JSON, "+--"),
        ("<= 2020-01-31T12:00", ["2020-01-31 12:00:00", "2020-02-01", "0001-01-01"], JSON, "+-+"),
        (
            "> 2020-01-31T12:00Z",
            ["2020-01-31T14:00:00+02:00", "2020-01-31T12:00:01Z", "9999-12-31T23:59Z"],
            JSON,
            "-++",
        ),
        ("== 2020-01-31", ["2020-01-31T01:00:00+01:00", "someday", "2020-01-31T01:00:00"], JSON, "+--"),
        ("!= 2020-01-31", ["2020-01-31T01:00:00+01:00", "someday", "2020-01-31T01:00:00"], JSON, "-++"),
        (["2020-01-31", "2021-01-01"], [" 20200131", "2021-01-01T00:00:00Z", "2021"], JSON, "++-"),
        (["2020-01-31", "someday"], ["2020-01-31T01:00:00+01:00", "someday", "2020-01-31"], JSON, "-++"),
    ],
    ids=str,
)
def test_rows_that_hold_are_kept_and_others_counted(
    condition: Any, values: list[Any], kind: Any, held: str, tmp_path: Path
):
    texts = ["text 0", "text 1", "text 2", "of a null"]
    column = pa.array([*values, None], None if kind == JSON else kind)
    forms = {"a.parquet": column}
    if column.type == pa.string():
        forms |= {"dictionary.parquet": column.dictionary_encode(), "view.parquet": column.cast(pa.string_view())}
    for name, own in forms.items():
        pq.write_table(pa.table({"text": texts, "c": own}), tmp_path / name)
    if kind == JSON:
        records = [{"text": text, "c": value} for text, value in zip(texts, [*values, None], strict=True)]
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    for path in tmp_path.iterdir():
        if not held:
            with pytest.raises(
                SourceError, match=rf"{path.name}: column 'c' holds '2020-02'; cannot test < 2020-01-31"
            ):
                read_batches(files_source(path, keep={"c": condition}))
            continue
        batches = read_batches(files_source(path, keep={"c": condition}))
        kept = [number for number, sign in enumerate(held) if sign == "+"]
        assert rows_of(batches) == kept
        assert texts_of(batches) == [texts[row] for row in kept]
        rejected = sum((Counter(batch.rejected) for batch in batches), Counter[str]())
        reason = parse_predicate("c", condition).reason
        assert rejected == Counter({f"{reason}: null": 1, reason: held.count("-")})


def test_dates_of_int96_beyond_those_of_nanoseconds_are_compared(tmp_path: Path):
    years = [1, 1677, 2020, 2263, 9999]
    times = pa.array([datetime.datetime(year, 3, 1, 12, 30, 0, 7) for year in years], pa.timestamp("us"))
    table = pa.table({"text": [f"text {year}" for year in years], "date": times})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    for condition, held in (
        (">= 2020-01-31", years[2:]),
        ("< 2262-01-01", years[:3]),
        ("== 9999-03-01T12:30:00.000007", [9999]),
    ):
        batches = read_batches(files_source(tmp_path / "a.parquet", keep={"date": condition}))
        assert texts_of(batches) == [f"text {year}" for year in held]


PARTS = {
    "year=2019/lang=en/a.jsonl": 10,
    "year=2020/lang=en/a.jsonl": 20,
    "year=2020/lang=pt%2FBR/a.jsonl": 30,
    "year=2021/lang=__HIVE_DEFAULT_PARTITION__/a.jsonl": 40,
    "year=2021/lang=en/notes=no.txt": 50,
}
"""A table in Hive's layout: files, and the text of each."""


@pytest.mark.parametrize(
    ("keep", "kept", "said"),
    [
        ({"year": ">= 2020"}, "20 30 40 50", ["1 file: not year >= 2020"]),
        ({"year": [2019, 2021]}, "10 40 50", ["2 files: not year in (2019, 2021)"]),
        ({"lang": "== 'pt/BR'"}, "30", ["3 files: not lang == pt/BR", "1 file: not lang == pt/BR: null"]),
        ({"year": "< 2021", "score": "> 10"}, "20 30", ["2 files: not year < 2021"]),
    ],
)
def test_folders_of_hive_are_columns(tmp_path: Path, keep: Any, kept: str, said: list[str]):
    for name, score in PARTS.items():
        record = {"text": f"{score}", "score": score, "year": 1}
        write_file(tmp_path / name, f"{score}" if "txt" in name else json.dumps(record))
    source = files_source(tmp_path / "**/*.*", keep=keep, separator="\n")
    notes: list[str] = []
    list_files(source, notes.append)
    assert notes == [f"files of s: left out by their folders: {line}" for line in said]
    assert texts_of(read_batches(source)) == kept.split()
