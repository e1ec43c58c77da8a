"""Load a checkpoint's tensors: weights, optimizer state, torch's random generators."""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
from __future__ import annotations

from typing import cast

import safetensors.torch
import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trainer.checkpoint.folders import MODEL_FILE, OPTIMIZER_FILE, RNG_FILE, Checkpoint, CheckpointError


def load_weights(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Load the weights; every name and shape must match.

    Raises:
        CheckpointError: they do not match.
    """
    try:
        model.load_state_dict(safetensors.torch.load_file(checkpoint.path / MODEL_FILE))
    except RuntimeError as error:
        raise CheckpointError(f"{checkpoint.path / MODEL_FILE}: {error}") from error


def load_training_state(checkpoint: Checkpoint, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Load the optimizers' state and torch's random generators."""
    # Each tensor belongs to a parameter, and the parameter to one of the optimizers.
    tensors = safetensors.torch.load_file(checkpoint.path / OPTIMIZER_FILE)
    parameters = dict(model.named_parameters())
    owners: dict[nn.Parameter, torch.optim.Optimizer] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            owners.update(dict.fromkeys(cast("list[nn.Parameter]", group["params"]), optimizer))
    for name, tensor in tensors.items():
        key, _, parameter_name = name.partition(".")
        parameter = parameters[parameter_name]
        # A fused AdamW keeps its step count in fp32 on the parameter's device, like the rest of its state.
        tensor = tensor.to(parameter.device)
        if isinstance(parameter, DTensor) and tensor.shape == parameter.shape:
            tensor = distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
        owners[parameter].state[parameter][key] = tensor

    generators = safetensors.torch.load_file(checkpoint.path / RNG_FILE)
    torch.set_rng_state(generators["cpu"])
    if torch.cuda.is_available() and "cuda" in generators:
        torch.cuda.set_rng_state(generators["cuda"])
