"""Predicates: the rows that a condition keeps, of columns of any type and form. The golden file has what is refused."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

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
from tests.support.reading import files_source, read_batches, texts_of

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
    ],
    ids=str,
)
def test_rows_that_hold_are_kept_and_others_counted(
    condition: Any, values: list[Any], kind: Any, held: str, tmp_path: Path
) -> None:
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
        batches = read_batches(files_source(path, keep={"c": condition}))
        kept = [number for number, sign in enumerate(held) if sign == "+"]
        assert [row for batch in batches for row in batch.rows.tolist()] == kept
        assert texts_of(batches) == [texts[row] for row in kept]
        rejected = sum((Counter(batch.rejected) for batch in batches), Counter[str]())
        reason = parse_predicate("c", condition).reason
        assert rejected == Counter({f"{reason}: null": 1, reason: held.count("-")})
