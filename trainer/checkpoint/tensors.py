"""The tensors of a checkpoint: weights, optimizer state, torch's random generators, saved whole or not at all."""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import cast

import safetensors
import safetensors.torch
import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from shards.stores.files import write_folder, write_text
from shards.terminal.amounts import format_size
from trainer.checkpoint.folders import (
    CHECKSUMS_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    RNG_FILE,
    STATE_FILE,
    Checkpoint,
    CheckpointError,
    CheckpointState,
    checkpoint_path,
    hash_files,
    list_checkpoints,
    step_of_checkpoint,
)


def save_checkpoint(
    run: Path,
    state: CheckpointState,
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    *,
    keep_last: int,
    keep_steps: Collection[int] = (),
    write: bool = True,
) -> Path:
    """Write a checkpoint with its tensors, then delete all but the last `keep_last` and those of `keep_steps`.

    Every rank calls it, since gathering the tensors needs all of them; the rank with `write` writes.

    Raises:
        OSError: the disk is full or not writable; the previous checkpoints are untouched.
    """
    weights = {name: _gather(tensor) for name, tensor in model.state_dict().items()}
    moments = {
        f"{key}.{name}": _gather(value)
        for name, parameter in model.named_parameters()
        for optimizer in optimizers
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    path = checkpoint_path(run, state.step)
    if not write:
        return path
    check_disk(run, sum(tensor.nbytes for tensor in (*weights.values(), *moments.values())), path)
    with write_folder(path) as folder:
        write_tensors(folder / MODEL_FILE, weights)
        write_tensors(folder / OPTIMIZER_FILE, moments)
        write_tensors(folder / RNG_FILE, _rng_tensors())
        write_text(folder / STATE_FILE, state.model_dump_json(indent=2) + "\n")
        write_text(folder / CHECKSUMS_FILE, json.dumps(hash_files(folder), indent=2))
    for old in list_checkpoints(run)[:-keep_last]:
        if step_of_checkpoint(old) not in keep_steps:
            # It is renamed first, so that a crash while it is deleted leaves no half of a checkpoint.
            shutil.rmtree(old.rename(old.with_name(f".{old.name}.deleted")))
    return path


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Save tensors, as of a checkpoint, as a safetensors file, synced to disk, that others may read by the umask.

    Raises:
        OSError: the disk is full or not writable.
    """
    path.touch()
    mode = path.stat().st_mode
    try:
        safetensors.torch.save_file(tensors, path, metadata)
    except safetensors.SafetensorError as error:
        raise OSError(f"{path}: {error}") from error  # safetensors' form of a full disk
    path.chmod(mode)  # safetensors replaces the file by a temporary one, for its owner alone
    with path.open("rb") as file:
        os.fsync(file.fileno())


def check_disk(folder: Path, needed: int, what: Path | str) -> None:
    """Check before a checkpoint is saved that the disk has `needed` bytes free, and 1 MiB for the small files."""
    needed += 1 << 20
    free = shutil.disk_usage(folder).free
    if free < needed:
        found = f"{format_size(needed)} are needed, {format_size(free)} are free. Delete something"
        raise OSError(errno.ENOSPC, found, str(what))


def _gather(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


def _rng_tensors() -> dict[str, torch.Tensor]:
    tensors = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors


def load_weights(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Load the weights of a checkpoint; every name and shape must match.

    Raises:
        CheckpointError: they do not match.
    """
    try:
        model.load_state_dict(safetensors.torch.load_file(checkpoint.path / MODEL_FILE))
    except RuntimeError as error:
        raise CheckpointError(f"{checkpoint.path / MODEL_FILE}: {error}") from error


def load_training_state(checkpoint: Checkpoint, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Load from a checkpoint's tensors the optimizers' state and torch's random generators."""
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
