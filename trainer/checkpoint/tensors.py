"""The tensors of a checkpoint: weights and optimizer state, saved whole or not at all."""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
import errno
import json
import shutil
from collections.abc import Mapping, Set
from pathlib import Path
from typing import cast

import safetensors
import safetensors.torch
import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from shards.errors import InputError
from shards.stores.files import sync_path, write_folder, write_text
from shards.terminal.amounts import format_size
from trainer.checkpoint.folders import (
    CHECKSUMS_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    Checkpoint,
    CheckpointState,
    checkpoint_path,
    hash_files,
)
from trainer.optim import STATE, Optimizers

_REMEDY = "Use another copy of the checkpoint, or an earlier one."


def save_checkpoint(
    run: Path,
    state: CheckpointState,
    model: nn.Module,
    optimizers: Optimizers,
    *,
    write: bool = True,
) -> Path:
    """Write a checkpoint with its tensors.

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
        write_text(folder / STATE_FILE, state.to_json())
        write_text(folder / CHECKSUMS_FILE, json.dumps(hash_files(folder), indent=2))
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
    sync_path(path)


def check_disk(folder: Path, needed: int, what: Path | str) -> None:
    """Check before a checkpoint is saved that the disk has `needed` bytes free, and 1 MiB for the small files."""
    needed += 1 << 20
    free = shutil.disk_usage(folder).free
    if free < needed:
        found = f"{format_size(needed)} are needed, {format_size(free)} are free. Delete some files"
        raise OSError(errno.ENOSPC, found, str(what))


def _gather(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


def load_tensors(
    path: Path, expected: Mapping[str, torch.Tensor], *, optional: Set[str] = frozenset(), convert: bool = False
) -> dict[str, torch.Tensor]:
    """Load a safetensors file that must have some tensors and no others, of finite numbers.

    Args:
        path: the file.
        expected: for each name a tensor of its shape and dtype, which may be on any device.
        optional: names that the file may have or not.
        convert: take tensors of other floating point dtypes, converted.

    Raises:
        InputError: the file is damaged, or has other tensors. No more memory is taken than it has bytes.
    """
    tensors: dict[str, torch.Tensor] = {}
    if not path.is_file():
        raise InputError(f"{path}: is missing, or no regular file. {_REMEDY}")
    try:
        with safetensors.safe_open(path, "pt") as file:
            # The header is compared before a tensor is loaded.
            names: set[str] = {*file.keys()}
            for what, others in (("no", expected.keys() - names), ("an unknown", names - expected.keys())):
                if others := others - optional:
                    more = f", and {len(others) - 1} more" if len(others) > 1 else ""
                    raise InputError(f"{path}: has {what} tensor {min(others)!r:.200}{more}. {_REMEDY}")
            for name, like in expected.items():
                if name not in names:
                    continue
                shape = file.get_slice(name).get_shape()
                if shape != [*like.shape]:
                    raise InputError(f"{path}: {name}: shape {shape}; expected {[*like.shape]}. {_REMEDY}")
                tensor = file.get_tensor(name)
                if convert and tensor.is_floating_point():
                    tensor = tensor.to(like.dtype)
                tensors[name] = tensor
                if tensor.dtype != like.dtype:
                    raise InputError(f"{path}: {name}: {tensor.dtype}; expected {like.dtype}. {_REMEDY}")
                least, most = tensor.aminmax()
                if not (least.isfinite() and most.isfinite()):  # of a NaN, both are NaN
                    raise InputError(f"{path}: {name}: has numbers that are not finite. {_REMEDY}")
    except (safetensors.SafetensorError, AttributeError) as error:  # of a dtype that torch does not have
        raise InputError(f"{path}: not a safetensors file: {error}. {_REMEDY}") from error
    return tensors


def load_weights(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Load the weights of a checkpoint; every name, shape and dtype must match.

    Args:
        checkpoint: the checkpoint.
        model: the model to load them into; if it is on the device `meta`, memory is taken when they are known to match.

    Raises:
        InputError: they do not match, or are not finite.
    """
    tensors = load_tensors(checkpoint.path / MODEL_FILE, model.state_dict())
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device="cpu")
    model.load_state_dict(tensors)


def load_training_state(checkpoint: Checkpoint, model: nn.Module, optimizers: Optimizers) -> None:
    """Load the optimizers' state of a checkpoint.

    Raises:
        InputError: they are not those of this model and these optimizers, or are not finite.
    """
    # Each tensor belongs to a parameter, and the parameter to one of the optimizers.
    names = {parameter: name for name, parameter in model.named_parameters()}
    places: dict[str, tuple[torch.optim.Optimizer, nn.Parameter, str]] = {}
    expected: dict[str, torch.Tensor] = {}
    for optimizer in optimizers if checkpoint.state.step else []:
        for group in optimizer.param_groups:
            for parameter in cast("list[nn.Parameter]", group["params"]):
                for key in STATE[type(optimizer)]:
                    name = f"{key}.{names[parameter]}"
                    places[name] = (optimizer, parameter, key)
                    expected[name] = torch.empty((), device="meta") if key == "step" else parameter
    for name, tensor in load_tensors(checkpoint.path / OPTIMIZER_FILE, expected).items():
        optimizer, parameter, key = places[name]
        # A fused AdamW keeps its step count in fp32 on the parameter's device, like the rest of its state.
        tensor = tensor.to(parameter.device)
        if isinstance(parameter, DTensor) and tensor.shape == parameter.shape:
            tensor = distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
        optimizer.state[parameter][key] = tensor
