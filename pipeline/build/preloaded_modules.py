"""Which modules the workers of a build load besides those of every build: the compiled measures, if it has presets.

They are loaded while the recipe is read and checked. So its tables are looked at before they are known to be right.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline.recipe.clean_table import list_clean
from pipeline.recipe.paths import SHIPPED
from pipeline.recipe.presets import PRESETS
from shards.config import apply_override, read_document
from shards.errors import InputError
from shards.terminal.shipped_recipes import find_recipe

MEASURES_MODULE = "pipeline.clean.measures.preloaded_measures"


def find_preloaded_modules(recipe: str | Path | dict[str, Any] | BaseModel, overrides: Sequence[str] = ()) -> list[str]:
    """Return the modules that workers load before the recipe is read, in their order.

    Args:
        recipe: the recipe's file, the name of a shipped recipe, its tables, or the recipe.
        overrides: `dotted.key=value` strings that change it.
    """
    if isinstance(recipe, BaseModel):
        tables = recipe.model_dump()
    elif isinstance(recipe, dict):
        tables = copy.deepcopy(recipe)
    else:
        try:
            tables = read_document(find_recipe(recipe, SHIPPED))
        except InputError:  # the build says why it cannot be used
            return []
    for override in overrides:
        list(apply_override(tables, override))  # its faults, too
    return [MEASURES_MODULE] if any(PRESETS.keys() & clean.keys() for _, clean in list_clean(tables)) else []
