"""The optimizers and the learning rate's schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from trainer.recipe import OptimizerConfig, TrainRecipe


def is_muons(name: str, weight: nn.Parameter, config: OptimizerConfig) -> bool:
    """Return whether Muon takes a weight: the layers' matrices, where the recipe chose it."""
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
    """Return the learning rate of a step, counted from 0: linear warm-up, then a cosine.

    The first step has 1 / warmup_steps of the peak, the last step of the run exactly `min_lr_ratio` of it.
    """
    peak, warmup, ratio = recipe.optimizer.lr, recipe.schedule.warmup_steps, recipe.schedule.min_lr_ratio
    if step < warmup:
        return peak * (step + 1) / warmup
    # The step after the warm-up has the peak; a run with no steps to decay in stays there.
    progress = (step - warmup) / max(1, recipe.train.steps - 1 - warmup)
    return peak * (ratio + (1 - ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
