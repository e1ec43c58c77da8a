"""The train recipe: `schema` says what it may hold, `eval_config` what its `[eval]` may; `checks` reads one."""

from trainer.recipe.checks import load_train_recipe, parse_recipe
from trainer.recipe.schema import ModelConfig, OptimizerConfig, PhaseConfig, TrainConfig, TrainRecipe

__all__ = [
    "ModelConfig",
    "OptimizerConfig",
    "PhaseConfig",
    "TrainConfig",
    "TrainRecipe",
    "load_train_recipe",
    "parse_recipe",
]
