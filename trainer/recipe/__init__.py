"""The train recipe: `schema` says what it may hold, `eval_config` what its `[eval]` may; `load` reads one."""

from trainer.recipe.load import load_train_recipe
from trainer.recipe.schema import ModelConfig, OptimizerConfig, PhaseConfig, TrainConfig, TrainRecipe

__all__ = [
    "ModelConfig",
    "OptimizerConfig",
    "PhaseConfig",
    "TrainConfig",
    "TrainRecipe",
    "load_train_recipe",
]
