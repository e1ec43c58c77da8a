"""AdamW and the learning rate's schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from trainer.config import OptimizerConfig, TrainRecipe


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Build AdamW with weight decay on matrices (embeddings included) and none on norms.

    Always fused: one kernel over all parameters, on the CPU as on a GPU; elementwise, hence deterministic.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def learning_rate(step: int, recipe: TrainRecipe) -> float:
    """Return the learning rate of a step, counted from 0: linear warm-up, then a cosine.

    The first step has 1 / warmup_steps of the peak, the last step of the run exactly `min_lr_ratio` of it.
    """
    peak, warmup, ratio = recipe.optimizer.lr, recipe.schedule.warmup_steps, recipe.schedule.min_lr_ratio
    if step < warmup:
        return peak * (step + 1) / warmup
    # The step after the warm-up has the peak; a run with no steps to decay in stays there.
    progress = (step - warmup) / max(1, recipe.train.steps - 1 - warmup)
    return peak * (ratio + (1 - ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr
