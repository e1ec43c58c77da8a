"""What the workers of one build load besides the modules of every build: compiled measures, the tokenizer's encoder.

They load it while the recipe is read and checked. So this module looks at the recipe's tables before they are known to
be right. It imports the checks only if the recipe cleans, since the fork server would wait for them: 0.09 s.
"""

from __future__ import annotations

import copy
import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pipeline.engine.executors import Preload
from pipeline.recipe.paths import SHIPPED, join_path
from shards.errors import InputError
from shards.terminal.shipped_recipes import find_recipe

if TYPE_CHECKING:
    from pipeline.recipe.schema import Recipe

MEASURES_MODULE = "pipeline.clean.measures.preloaded_measures"
ENCODER_MODULE = "pipeline.tokenizer.preloaded_encoder"
TOKENIZER_VARIABLE = "TOKENMILL_TOKENIZER_TO_LOAD"


def find_preloaded_modules(recipe: str | Path | dict[str, Any] | Recipe, overrides: Sequence[str] = ()) -> Preload:
    """Return what to load before the recipe is read.

    Args:
        recipe: the recipe's file, the name of a shipped recipe, its tables, or the recipe.
        overrides: `dotted.key=value` strings that change it.
    """
    folder = Path.cwd()
    if isinstance(recipe, dict):
        tables = recipe
    elif isinstance(recipe, str | Path):
        try:
            source = find_recipe(recipe, SHIPPED)
            tables = (json if source.suffix == ".json" else tomllib).loads(source.read_text(encoding="utf-8"))
        except (InputError, OSError, ValueError, RecursionError):  # the build says why it cannot be used
            return Preload()
        if not isinstance(tables, dict):
            return Preload()
        folder = Path(os.path.abspath(source.parent))
    else:
        tables, folder = recipe.model_dump(), recipe.folder
    modules = [MEASURES_MODULE] if _has_presets(tables, overrides) else []
    environment: dict[str, str] = {}
    # Only a file's: to read a pipe may never end, and a path with a zero byte fits in no variable.
    if (file := _find_tokenizer(tables, overrides)) and os.path.isfile(path := join_path(folder, file)):
        modules.append(ENCODER_MODULE)
        environment[TOKENIZER_VARIABLE] = path
    return Preload(tuple(modules), environment)


def _has_presets(tables: Any, overrides: Sequence[str]) -> bool:
    if not any("clean" in part for part in (repr(tables), *overrides)):
        return False
    from pipeline.recipe.presets import PRESETS
    from pipeline.recipe.raw_tables import list_clean
    from shards.config import apply_override

    changed = copy.deepcopy(tables)
    for override in overrides:
        list(apply_override(changed, override))  # its faults, too
    return any(PRESETS.keys() & clean.keys() for _, clean in list_clean(changed))


def _find_tokenizer(tables: Any, overrides: Sequence[str]) -> str | None:
    """Return the tokenizer's file as the recipe names it; None if it names none, or if an override may change it."""
    section = cast("dict[str, Any]", tables).get("tokenizer") if isinstance(tables, dict) else None
    file = cast("dict[str, Any]", section).get("file") if isinstance(section, dict) else None
    return file if isinstance(file, str) and not any("tokenizer" in override for override in overrides) else None
