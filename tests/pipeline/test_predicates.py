"""Predicates: how a condition is read, what it holds for, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.recipe.predicates import parse_keep, parse_predicate


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


NO_CONDITIONS = ["", "3", "= 3", "=> 3", ">=", 3, True, [], None, {}, [[1]], [None], [1, "a"], [1, True]]


@pytest.mark.parametrize("condition", NO_CONDITIONS)
def test_conditions_that_are_none(condition: Any) -> None:
    with pytest.raises(ValueError, match="c: expected a "):
        parse_predicate("c", condition)


def test_reasons_and_order() -> None:
    keep = parse_keep({"b": ">= 3", "a": ["x", "y"]})
    assert [predicate.reason for predicate in keep] == ["not b >= 3", "not a in ('x', 'y')"]
