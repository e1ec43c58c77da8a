"""File formats: one table has them all."""

from __future__ import annotations

from typing import get_args

from pipeline.recipe.key_values import FormatName
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.formats.contract import FORMATS


def test_recipes_name_the_formats_of_the_table() -> None:
    assert set(get_args(FormatName)) == {"auto", *FORMATS}


def test_each_format_has_a_module_and_endings_of_its_own() -> None:
    endings = [ending for format_ in FORMATS.values() for ending in format_.endings]
    assert len(endings) == len(set(endings))
    for name, format_ in FORMATS.items():
        assert callable(format_.load().cut_file), name
        assert callable(format_.load().read_span), name
        assert set(format_.keys) <= SourceRecipe.model_fields.keys(), name
        assert set(format_.required) <= set(format_.keys), name
