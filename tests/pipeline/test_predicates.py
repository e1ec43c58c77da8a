"""Predicates: how a condition is read, what it holds for, and what is refused."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pyarrow as pa
import pytest

from pipeline.recipe.predicates import parse_predicate


@pytest.mark.parametrize(
    ("condition", "operator", "value"),
    [
        (">= 3", ">=", 3),
        ("<2.5", "<", 2.5),
        ("  ==  'en' ", "==", "en"),
        ('!= "a b"', "!=", "a b"),
        ("== en", "==", "en"),
        ("== '3'", "==", "3"),
        ("== true", "==", True),
        ("> -1e3", ">", -1000.0),
        (["a", "b"], "in", ("a", "b")),
        ([1, 2.5], "in", (1, 2.5)),
        ([True], "in", (True,)),
    ],
)
def test_conditions(condition: Any, operator: str, value: Any) -> None:
    found = parse_predicate("c", condition)
    assert (found.operator, found.value, type(found.value)) == (operator, value, type(value))


NO_CONDITIONS: list[Any] = ["", "3", "= 3", "=> 3", ">=", 3, True, [], None, {}, [[1]], [None], [1, "a"], [1, True]]


@pytest.mark.parametrize("condition", NO_CONDITIONS)
def test_conditions_that_are_none(condition: Any) -> None:
    with pytest.raises(ValueError, match="c: expected a "):
        parse_predicate("c", condition)


DAYS = [datetime.date(2020, 1, 1) + datetime.timedelta(days=day) for day in range(3)]
TIMES = [datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC) + datetime.timedelta(hours=hour) for hour in range(3)]
LARGE = [2**63 - 1, 2**63, 2**64 - 1]
SMALL = [-(2**63), 0, 2**53 + 1]
UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("condition", "values", "kind", "held"),
    [
        (f">= {2**63}", LARGE, pa.uint64(), [False, True, True]),
        (f"== {2**64 - 1}", LARGE, pa.uint64(), [False, False, True]),
        ("> -1", LARGE, pa.uint64(), [True, True, True]),
        ("<= 1.5", LARGE, pa.uint64(), [False, False, False]),
        ([2**63, -1, 1e30], LARGE, pa.uint64(), [False, True, False]),
        (f"> {2**53}", SMALL, pa.int64(), [False, False, True]),
        ("> 9007199254740992.0", SMALL, pa.int64(), [False, False, True]),
        ("< 0.5", SMALL, pa.int64(), [True, True, False]),
        (">= -0.5", SMALL, pa.int64(), [False, True, True]),
        ("== 0.5", SMALL, pa.int64(), [False, False, False]),
        ("!= 0.5", SMALL, pa.int64(), [True, True, True]),
        (f"< {10**30}", SMALL, pa.int64(), [True, True, True]),
        (">= 300", [1, 2, 255], pa.uint8(), [False, False, False]),
        (f"> {2**53 + 1}", [2.0**53, 2.0**53 + 2, math.inf], pa.float64(), [False, True, True]),
        (f">= {2**63}", [1.0, 2.0**63, -math.inf], pa.float32(), [False, True, False]),
        (f">= {2**63}", [1, 2**63, 2**80], pa.decimal128(38, 2), [False, True, True]),
        ([2**63, 2], [1, 2**63, 2], pa.decimal128(38, 2), [False, True, True]),
        (">= 2020-01-02", DAYS, pa.date32(), [False, True, True]),
        (["2020-01-01", "2020-01-03"], DAYS, pa.date64(), [True, False, True]),
        ("< 2020-01-01T13:00:00", TIMES, UTC, [True, False, False]),
        ("== 2020-01-01T15:00:00+01:00", TIMES, UTC, [False, False, True]),
        (
            "> 2020-01-01T12:00:00",
            [time.replace(tzinfo=None) for time in TIMES],
            pa.timestamp("ns"),
            [False, True, True],
        ),
    ],
    ids=str,
)
def test_every_integer_date_and_time_is_compared(
    condition: Any, values: list[Any], kind: pa.DataType, held: list[bool]
) -> None:
    predicate = parse_predicate("c", condition)
    assert predicate.fits(kind)
    assert predicate.mask(pa.array([*values, None], kind)).to_pylist() == [*held, None]


@pytest.mark.parametrize(
    ("condition", "kind"),
    [("== '3'", pa.int64()), (["3"], pa.float32()), ([True], pa.int8()), ([3], pa.string())],
    ids=str,
)
def test_a_value_of_another_type_is_not_converted(condition: Any, kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match=f"column 'c' is {kind}; cannot test"):
        parse_predicate("c", condition).mask(pa.array([None, 3], pa.int64()).cast(kind))
