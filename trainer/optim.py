"""The optimizers, AdamW and Muon, and the learning rate's schedule."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from trainer.recipe.schema import ChosenPrecision, OptimizerConfig, TrainRecipe

STACK = {"cpu": 2**16, "cuda": 2**24}
"""Numbers that Muon orthogonalises at once, or one matrix. On a CPU they fit the cache; more fill no GPU better."""


class Muon(torch.optim.Muon):
    """Torch's Muon, by stacks of matrices of one shape: a GPU would start 33 kernels for each matrix otherwise.

    Of torch's private functions it takes `_foreach_*`, as torch's own optimizers do: one kernel for many tensors.
    Also for matrices that FSDP2 has split over ranks: each rank orthogonalises whole updates. The momentum stays split.
    The updates of a stack are gathered at once, in the gradient's dtype; every rank then computes the same and keeps
    its own rows, so that the weights are those of one rank. On a CPU they are, bit for bit, those of each matrix alone
    (of 10 x 10 or more).
    """

    def __init__(self, weights: list[nn.Parameter], dtype: torch.dtype, **options: Any):
        """Set in which dtype Muon orthogonalises updates; the options are torch's."""
        super().__init__(weights, **options)
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all weights of Muon that have a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[weight.shape].append(weight)
            for shape, alike in by_shape.items():
                size = max(1, STACK[alike[0].device.type] // shape.numel())
                for first in range(0, len(alike), size):
                    self._update(alike[first : first + size], group)

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Update weights of one shape by Muon."""
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        own = [own_part(weight) for weight in weights]
        gradients = [own_part(weight.grad) for weight in weights]
        momenta = [own_part(self.state[weight]["momentum_buffer"]) for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        update = torch.stack(torch._foreach_lerp(gradients, momenta, group["momentum"]))
        update = _orthogonalise(update, weights[0], group, self._dtype).to(update.dtype)
        torch._foreach_mul_(own, 1 - group["lr"] * group["weight_decay"])
        # To the RMS of AdamW's updates, so that both have one learning rate and one weight decay.
        rate = group["lr"] * (0.2 * math.sqrt(max(weights[0].shape)))
        torch._foreach_add_(own, update.unbind(), alpha=-rate)


def own_part(tensor: Any) -> Tensor:
    """Return the part of a tensor to optimize that this rank holds; a change of it is one of the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _orthogonalise(update: Tensor, like: Tensor, group: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """Orthogonalise a stack of Muon's updates, or of this rank's parts of them, of weights that are split like one."""
    if not isinstance(like, DTensor):
        return _iterate(update, group, dtype)
    mesh, shape = like.device_mesh, (len(update), *like.shape)
    split = [Shard(one.dim + 1) if isinstance(one, Shard) else one for one in like.placements]
    strides = torch.empty(shape, device="meta").stride()
    whole = DTensor.from_local(update, mesh, split, run_check=False, shape=torch.Size(shape), stride=strides)
    found = _iterate(whole.full_tensor(), group, dtype)
    # Every rank has the whole matrices: taking its rows of them needs no exchange.
    replicated = DTensor.from_local(found, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(placements=split).to_local()


def _iterate(updates: Tensor, group: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """Return about the orthogonal factors of Muon's updates `(matrices, rows, columns)`: Newton and Schulz iterate.

    Source: `torch.optim.Muon`, which computes in bf16 whatever the processor: without bf16 products (AMD EPYC, one
    thread) a matrix of 128 x 128 takes 27 ms so and 2.1 ms in fp32, one of 384 x 384 762 and 50 ms.
    """
    a, b, c = group["ns_coefficients"]
    tall = updates.shape[1] > updates.shape[2]
    x = (updates.mT if tall else updates).to(dtype)
    x = x / torch.stack(torch._foreach_norm(x.unbind())).clamp(min=group["eps"])[:, None, None]
    for _ in range(group["ns_steps"]):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


Optimizers = list[torch.optim.Optimizer]
STATE: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    Muon: ("momentum_buffer",),
}
"""What an optimizer keeps of each weight, by name: `step` is a number, the others are as large as the weight."""


def choose_optimizer(name: str, weight: nn.Parameter, config: OptimizerConfig) -> type[torch.optim.Optimizer]:
    """Return the optimizer of a weight: Muon for the layers' matrices if the recipe chose it, AdamW for the rest."""
    return Muon if config.kind == "muon" and weight.ndim == 2 and ".layers." in name else torch.optim.AdamW


def build_optimizers(model: nn.Module, config: OptimizerConfig, precision: ChosenPrecision) -> Optimizers:
    """Build AdamW, with weight decay on matrices (embeddings included) and none on norms and biases; Muon if asked for.

    Always fused: one kernel over all parameters, on the CPU as on a GPU; elementwise, hence deterministic. Muon's
    updates are scaled to the RMS of AdamW's, so that one learning rate and one weight decay serve both, and
    orthogonalised in the precision of the forward pass. Source of the scale: Moonlight (arXiv:2502.16982).
    """
    weights: dict[type[torch.optim.Optimizer], list[nn.Parameter]] = defaultdict(list)
    for name, weight in model.named_parameters():
        weights[choose_optimizer(name, weight, config)].append(weight)
    others = weights[torch.optim.AdamW]
    groups = [
        {"params": [weight for weight in others if weight.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [weight for weight in others if weight.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
    if not weights[Muon]:
        return [adamw]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    muon_lr, decay = config.muon_lr or config.lr, config.weight_decay
    return [Muon(weights[Muon], dtype, lr=muon_lr, weight_decay=decay), adamw]


def set_learning_rates(optimizers: Optimizers, step: int, recipe: TrainRecipe) -> float:
    """Give each optimizer its learning rate of a step, counted from 0; return AdamW's."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe, peak=optimizer.defaults["lr"])
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
    match schedule.kind:
        case "cosine":
            left = 0.5 * (1 + math.cos(math.pi * _progress(step, schedule.warmup_steps, steps - 1)))
        case "wsd":
            left = 1 - math.sqrt(_progress(step, steps - 1 - (schedule.decay_steps or 0), steps - 1))
    return peak * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * left)


def _progress(step: int, begin: int, end: int) -> float:
    """Return how much of [begin, end] of the learning rate's schedule is before a step, 0 to 1."""
    return min(1.0, max(0.0, (step - begin) / max(1, end - begin)))
