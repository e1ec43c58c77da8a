"""The optimizers and the learning rate's schedule."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim._muon import _adjust_lr  # pyright: ignore[reportPrivateUsage]

from trainer.recipe import OptimizerConfig, TrainRecipe


def is_muons(name: str, weight: nn.Parameter, config: OptimizerConfig) -> bool:
    """Return whether Muon takes a weight: the layers' matrices, if the recipe chose Muon."""
    return config.kind == "muon" and weight.ndim == 2 and ".layers." in name


class Muon(torch.optim.Muon):
    """Torch's Muon, also for matrices that FSDP2 has split over ranks: each rank orthogonalises the whole update.

    The momentum stays split. An update is gathered once, in the gradient's dtype; every rank then computes the same
    and keeps its own rows, so that the weights are those of one rank. In bf16, without ranks, the bytes are those of
    torch.
    """

    def __init__(self, weights: list[nn.Parameter], dtype: torch.dtype, **options: Any):
        """Set in which dtype updates are orthogonalised; the options are torch's."""
        super().__init__(weights, **options)
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            weights: list[Tensor] = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                gradient = weight.grad
                assert gradient is not None
                state = self.state[weight]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(gradient)
                momentum: Tensor = state["momentum_buffer"]
                momentum.lerp_(gradient, 1 - group["momentum"])
                update = _orthogonalise(gradient.lerp(momentum, group["momentum"]), group, self._dtype)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-_adjust_lr(group["lr"], group["adjust_lr_fn"], weight.shape))


def _orthogonalise(update: Tensor, group: dict[str, Any], dtype: torch.dtype) -> Tensor:
    whole = _iterate(update.full_tensor() if isinstance(update, DTensor) else update, group, dtype)
    if not isinstance(update, DTensor):
        return whole
    # Every rank has the whole matrix: taking its rows of it needs no exchange.
    replicated = DTensor.from_local(whole, update.device_mesh, [Replicate()] * update.device_mesh.ndim, run_check=False)
    return replicated.redistribute(placements=update.placements)


def _iterate(update: Tensor, group: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """Return about the orthogonal factor of an update `(rows, columns)`, by Newton and Schulz's iterations in a dtype.

    Source: `torch.optim.Muon`, which computes in bf16 whatever the processor: without bf16 products (AMD EPYC, one
    thread) a matrix of 128 x 128 takes 27 ms so and 2.1 ms in fp32, one of 384 x 384 762 and 50 ms.
    """
    a, b, c = group["ns_coefficients"]
    tall = update.shape[0] > update.shape[1]
    x = (update.t() if tall else update).to(dtype)
    x = x / x.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.t()
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.t() if tall else x


def build_optimizers(
    model: nn.Module, config: OptimizerConfig, precision: Literal["fp32", "bf16"]
) -> list[torch.optim.Optimizer]:
    """Build AdamW, with weight decay on matrices (embeddings included) and none on norms and biases; Muon if asked for.

    Always fused: one kernel over all parameters, on the CPU as on a GPU; elementwise, hence deterministic. Muon's
    updates are scaled to the RMS of AdamW's, so that one learning rate and one weight decay serve both, and
    orthogonalised in the precision of the forward pass. Source of the scale: Moonlight (arXiv:2502.16982).
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
    muon_lr = config.muon_lr or config.lr
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    muon = Muon(muons, dtype, lr=muon_lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
    return [muon, adamw]


def set_learning_rates(optimizers: list[torch.optim.Optimizer], step: int, recipe: TrainRecipe) -> float:
    """Give each optimizer its learning rate of a step, counted from 0; return AdamW's."""
    for optimizer in optimizers:
        peak = recipe.optimizer.muon_lr if isinstance(optimizer, Muon) else None
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe, peak=peak)
    return learning_rate(step, recipe)


def learning_rate(step: int, recipe: TrainRecipe, *, peak: float | None = None) -> float:
    """Return the learning rate of a step, counted from 0: linear warm-up, then the decay that the recipe chose.

    Args:
        step: the step.
        recipe: its schedule, steps and, unless `peak` is given, peak.
        peak: the rate after the warm-up.

    The first step has 1 / warmup_steps of the peak, the step after the warm-up the peak, and the last step of the run
    exactly `min_lr_ratio` of it. A run with no steps to decay in stays at the peak.
    """
    schedule, steps = recipe.schedule, recipe.train.steps
    peak = recipe.optimizer.lr if peak is None else peak
    if step < schedule.warmup_steps:
        return peak * (step + 1) / schedule.warmup_steps
    if schedule.kind == "cosine":
        begin = schedule.warmup_steps
        left = 0.5 * (1 + math.cos(math.pi * _progress(step, begin, steps - 1)))
    else:
        begin = steps - 1 - (schedule.decay_steps or 0)
        progress = _progress(step, begin, steps - 1)
        left = 1 - (math.sqrt(progress) if schedule.decay_shape == "1-sqrt" else progress)
    return peak * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * left)


def _progress(step: int, begin: int, end: int) -> float:
    """Return how much of [begin, end] is before a step, 0 to 1."""
    return min(1.0, max(0.0, (step - begin) / max(1, end - begin)))
