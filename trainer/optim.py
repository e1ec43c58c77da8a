"""The optimizers and the learning rate's schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from trainer.recipe import OptimizerConfig, TrainRecipe


def is_muons(name: str, weight: nn.Parameter, config: OptimizerConfig) -> bool:
    """Return whether Muon takes a weight: the layers' matrices, if the recipe chose Muon."""
    return config.kind == "muon" and weight.ndim == 2 and ".layers." in name


def build_optimizers(model: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """Build AdamW, with weight decay on matrices (embeddings included) and none on norms and biases; Muon if asked for.

    Always fused: one kernel over all parameters, on the CPU as on a GPU; elementwise, hence deterministic. Muon's
    updates are scaled to the RMS of AdamW's, so that one learning rate and one weight decay serve both. Source of the
    scale: Moonlight (arXiv:2502.16982).
    """
    muons = [weight for name, weight in model.named_parameters() if is_muons(name, weight, config)]
    others = [weight for name, weight in model.named_parameters() if not is_muons(name, weight, config)]
    groups = [
        {"params": [weight for weight in others if weight.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [weight for weight in others if weight.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
    if not muons:
        return [adamw]
    muon = torch.optim.Muon(muons, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
    return [muon, adamw]


def learning_rate(step: int, recipe: TrainRecipe) -> float:
    """Return the learning rate of a step, counted from 0: linear warm-up, then the decay that the recipe chose.

    The first step has 1 / warmup_steps of the peak, the step after the warm-up the peak, and the last step of the run
    exactly `min_lr_ratio` of it. A run with no steps to decay in stays at the peak.
    """
    schedule, steps = recipe.schedule, recipe.train.steps
    if step < schedule.warmup_steps:
        return recipe.optimizer.lr * (step + 1) / schedule.warmup_steps
    if schedule.kind == "cosine":
        begin = schedule.warmup_steps
        left = 0.5 * (1 + math.cos(math.pi * _progress(step, begin, steps - 1)))
    else:
        begin = steps - 1 - (schedule.decay_steps or 0)
        progress = _progress(step, begin, steps - 1)
        left = 1 - (math.sqrt(progress) if schedule.decay_shape == "1-sqrt" else progress)
    return recipe.optimizer.lr * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * left)


def _progress(step: int, begin: int, end: int) -> float:
    """Return how much of [begin, end] is before a step, 0 to 1."""
    return min(1.0, max(0.0, (step - begin) / max(1, end - begin)))
