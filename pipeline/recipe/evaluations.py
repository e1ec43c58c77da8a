"""Evaluation sets: the tables of a recipe that name test items which training must not contain."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.recipe.key_values import Delimiter, FormatName, Name, is_none
from shards.config import Settings


class EvaluationRecipe(Settings):
    """Test items that documents of the set must not contain."""

    name: Name
    """The evaluation set's name in counts and messages; distinct."""
    paths: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    """Globs over its files, relative to the recipe's folder. Each must match a file."""
    format: FormatName = "auto"
    """As for sources."""
    text: Annotated[str, Field(min_length=1)] = "text"
    """Column of the items' text, such as `question`; dots descend into structs."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """The text between two items of a text file."""
    delimiter: Delimiter | None = Field(default=None, exclude_if=is_none)
    """As for sources."""
    max_dropped: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The build stops if `action = "drop"` would drop a larger share of a source: items of a test are rare in text,
    whereas a wrong column matches everywhere."""
    action: Literal["report", "drop"] = "report"
    """`report` counts and shows the documents that hold an item; `drop` also drops them from all sources. Changing this
    encodes nothing again."""
