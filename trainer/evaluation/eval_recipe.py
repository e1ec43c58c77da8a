"""The recipe of `tokenmill eval`: what is scored, and how the model reads text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shards.config import Settings, apply_override, check_settings, read_document
from shards.terminal.gone import nearest
from shards.terminal.shipped_recipes import find_recipe
from trainer.eval_config import EvalConfig, check_eval, find_eval_folder, locate_eval_files
from trainer.recipe import SHIPPED, TrainConfig, TrainRecipe


class EvalRecipe(Settings):
    """The tables of a train recipe by which a trained model is scored."""

    train: TrainConfig
    eval: EvalConfig = EvalConfig()


def read_eval_recipe(path: Path, overrides: list[str], *, train: dict[str, Any]) -> EvalRecipe:
    """Read what to score a model on.

    Args:
        path: a train recipe, or a file with `[eval]` alone.
        overrides: `KEY=VALUE`, of keys of `eval` and `train`.
        train: the table with which the model was trained, whatever the file says.

    Raises:
        InputError: with every fault of the tables and of the overrides.
    """
    file = find_recipe(path, SHIPPED)
    given = read_document(file)
    locate_eval_files(given, find_eval_folder(file, path))
    data: dict[str, Any] = {"train": dict(train), "eval": given.get("eval", {})}
    known = list(TrainRecipe.model_fields)
    faults = [f"{key}: unknown key.{nearest(key, known)}" for key in given if key not in known]
    faults += [fault for override in overrides for fault in apply_override(data, override)]
    locate_eval_files(data, Path.cwd())
    return check_settings(EvalRecipe, data, where=str(file), checks=(check_eval,), faults=faults)
