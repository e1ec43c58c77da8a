"""The tables of a recipe's keys."""

# pyright: reportPrivateUsage=false

from typing import Annotated

import pytest
from pydantic import Field, create_model

from shards.config import Settings
from tokenmill.key_tables import _row


@pytest.mark.parametrize(
    ("kind", "bounds", "text"),
    [
        (int, {"ge": 0, "lt": 10}, "whole number, 0 to 9"),
        (int, {"gt": 0, "le": 10}, "whole number, 1 to 10"),
        (int, {"ge": 0, "lt": 1 << 63}, "whole number ≥ 0"),
        (int, {"lt": 10}, "whole number ≤ 9"),
        (float, {"ge": 0, "le": 1}, "number, 0 to 1"),
        (float, {"ge": 0, "lt": 1}, "number ≥ 0, < 1"),
        (float, {"gt": 0, "le": 1}, "number > 0, ≤ 1"),
        (float, {"lt": 1}, "number < 1"),
        (float, {}, "number"),
    ],
)
def test_the_bounds_of_a_number_are_said_as_they_are(kind, bounds, text):
    model = create_model("model", __base__=Settings, key=(Annotated[kind, Field(**bounds)], ...))
    row = _row("key", model.model_fields["key"], "")
    assert row == f"| `key` | {text} | required |  |"
