"""The optimizers and the learning rate's schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from trainer.config import OptimizerConfig, TrainRecipe


def build_optimizers(model: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """Build AdamW, with weight decay on matrices (embeddings included) and none on norms and biases; Muon if asked for.

    Always fused: one kernel over all parameters, on the CPU as on a GPU; elementwise, hence deterministic. Muon
    (torch.optim.Muon) takes the layers' matrices, with updates scaled to the RMS of AdamW's so that one learning rate
    and one weight decay serve both. Source of the scale: Moonlight (arXiv:2502.16982).
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    optimizers: list[torch.optim.Optimizer] = []
    if config.kind == "muon":
        matrices = [parameter for name, parameter in named if parameter.ndim == 2 and ".layers." in name]
        named = [(name, parameter) for name, parameter in named if parameter.ndim != 2 or ".layers." not in name]
        decay: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
        optimizers.append(torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw", **decay))
    groups = [
        {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
    return [*optimizers, adamw]


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
