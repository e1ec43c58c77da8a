"""A good recipe for tests to change, and the faults that are then reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.recipe.schema import Recipe
from shards.errors import InputError

GOOD = """\
name = "good"
[[sources]]
name = "prose"
paths = ["{folder}/*.jsonl"]
weight = 87
[[sources]]
name = "code"
paths = ["{folder}/*.py"]
weight = 3.5
[tokenizer]
vocab_size = 300
"""


def faults_in(error: InputError) -> list[str]:
    """Return the faults of a recipe, without the file before each."""
    return [str(problem).partition(": ")[2] for problem in error.problems]


def faults_of(load: Callable[..., Recipe], *arguments: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(*arguments)
    return faults_in(caught.value)
