"""Checkpoints: one folder each, written whole or not at all, checked by checksum before it is used, never unpickled.

    checkpoints/step-00000100/
        model.safetensors       weights, under transformers' names
        optimizer.safetensors   each parameter's state, as `<state>.<parameter>`
        rng.safetensors         torch's generators
        state.json              step, samples, recipe, digests of what the run reads
        checksums.json          xxh3-128 of each of these: against accidents, at 10 GB/s while a GPU waits for the save

A checkpoint is written to a temporary folder, synced to disk and renamed, then older ones beyond `keep_last` are
deleted. Bit rot and half-written copies are detected, named, and moved aside as `corrupt-step-...`. Tensors are saved
whole whatever they were split over, so that a run may go on with another number of ranks.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
import torch
import xxhash
from pydantic import Field, ValidationError
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from shards.config import Settings
from shards.errors import InputError, Problem
from shards.stores.files import stage_folder, write_text

FOLDER = "checkpoints"
MODEL_FILE, OPTIMIZER_FILE, RNG_FILE = "model.safetensors", "optimizer.safetensors", "rng.safetensors"
STATE_FILE, CHECKSUMS_FILE = "state.json", "checksums.json"
_NAME = re.compile(r"step-(\d{8,})")


class CheckpointError(InputError):
    """A checkpoint that is missing, half-written or corrupt."""


class CheckpointState(Settings):
    """Everything of a checkpoint but tensors."""

    format: Literal["tokenmill-checkpoint"] = "tokenmill-checkpoint"
    format_version: Literal[2] = 2
    step: int = Field(ge=0)
    """Optimizer steps done."""
    samples: int = Field(ge=0)
    """Samples consumed: the loader's whole state, together with the manifest's digest."""
    seconds: float = 0.0
    """Seconds that the run has taken so far, to be paid for."""
    recipe: dict[str, Any]
    vocab_size: int = Field(ge=1)
    eos_id: int = Field(ge=0)
    manifest_sha256: str
    tokenizer_sha256: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose files match their checksums."""

    path: Path
    state: CheckpointState


def checkpoint_path(run: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return run / FOLDER / f"step-{step:08d}"


def list_checkpoints(run: Path) -> list[Path]:
    """Return a run's checkpoint folders, oldest first. Temporary and corrupt ones have other names."""
    folder = run / FOLDER
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=step_of)


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
    """Write a checkpoint and delete those beyond the last `keep_last` that are not of `keep_steps`.

    Every rank calls it, for the tensors are gathered; the one with `write` writes.

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
    with stage_folder(path) as folder:
        write_tensors(folder / MODEL_FILE, weights)
        write_tensors(folder / OPTIMIZER_FILE, moments)
        write_tensors(folder / RNG_FILE, _rng_tensors())
        write_text(folder / STATE_FILE, state.model_dump_json(indent=2) + "\n")
        write_text(folder / CHECKSUMS_FILE, json.dumps(_hash_files(folder), indent=2))
    for old in list_checkpoints(run)[:-keep_last]:
        if step_of(old) not in keep_steps:
            # Its name goes first, so that a crash leaves no half of one.
            shutil.rmtree(old.rename(old.with_name(f".{old.name}.deleted")))
    return path


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, synced to disk; raises OSError when the disk is full."""
    try:
        safetensors.torch.save_file(tensors, path, metadata)
    except safetensors.SafetensorError as error:
        raise OSError(f"{path}: {error}") from error  # what safetensors makes of a full disk
    with path.open("rb") as file:
        os.fsync(file.fileno())


def check_disk(folder: Path, needed: int, what: Path | str) -> None:
    """Raise OSError when the folder's disk has less than so many bytes free, and 1 MiB for what else is written."""
    needed += 1 << 20
    free = shutil.disk_usage(folder).free
    if free < needed:
        found = f"{needed / 1e6:,.1f} MB are needed, {free / 1e6:,.1f} MB are free. Delete something"
        raise OSError(errno.ENOSPC, found, str(what))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's state and check every file's checksum; nothing is loaded yet.

    Raises:
        CheckpointError: it is missing, half-written or corrupt; the message names the file.
    """
    try:
        expected = json.loads((path / CHECKSUMS_FILE).read_bytes())
        found = _hash_files(path)
    except OSError as error:
        raise CheckpointError(f"{error.filename}: cannot be read ({error.strerror}): no whole checkpoint") from error
    except ValueError as error:
        raise CheckpointError(f"{path / CHECKSUMS_FILE}: corrupt: {error}") from error
    for name, checksum in found.items():
        if not isinstance(expected, dict) or expected.get(name) != checksum:
            raise CheckpointError(f"{path / name}: corrupt: its checksum {checksum} is not in {CHECKSUMS_FILE}")
    return Checkpoint(path, read_state(path))


def read_state(path: Path) -> CheckpointState:
    """Read a checkpoint's state alone; no checksum is checked.

    Raises:
        CheckpointError: it is not a state that this version reads, or its step is not that of the folder's name.
        OSError: it cannot be read.
    """
    try:
        state = CheckpointState.model_validate_json((path / STATE_FILE).read_bytes())
    except ValidationError as error:
        raise CheckpointError(f"{path / STATE_FILE}: not a state that this version reads: {error}") from error
    if _NAME.fullmatch(path.name) and step_of(path) != state.step:
        raise CheckpointError(f"{path / STATE_FILE}: step {state.step}; expected that of the folder's name")
    return state


def find_newest(run: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """Return a run's newest whole checkpoint; None when it holds none at all. Changes nothing.

    Args:
        run: the run folder.
        say: called with a message for each corrupt checkpoint that is passed over.

    Raises:
        CheckpointError: there are checkpoints, and every one is corrupt.
    """
    problems: list[str | Problem] = []
    for path in reversed(list_checkpoints(run)):
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            say(f"{error}. Trying the checkpoint before it.")
            problems.extend(error.problems)
    if problems:
        raise CheckpointError([*problems, f"{run}: no whole checkpoint is left. Start again in a new run folder."])
    return None


def clear_leftovers(run: Path, *, after_step: int | None) -> list[Path]:
    """Delete what crashed saves left, and move checkpoints found corrupt aside, to `corrupt-step-...`.

    Args:
        run: the run folder.
        after_step: checkpoints after this step were found corrupt; None when there are no checkpoints.

    Returns:
        The new names of the corrupt ones.
    """
    for left in (run / FOLDER).glob(".step-*"):
        shutil.rmtree(left)
    moved: list[Path] = []
    for path in list_checkpoints(run):
        if after_step is not None and step_of(path) > after_step:
            target = path.with_name(f"corrupt-{path.name}")
            if target.exists():
                shutil.rmtree(target)
            moved.append(path.rename(target))
    return moved


def load_weights(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Load the weights; every name and shape must match.

    Raises:
        CheckpointError: they do not.
    """
    try:
        model.load_state_dict(safetensors.torch.load_file(checkpoint.path / MODEL_FILE))
    except RuntimeError as error:
        raise CheckpointError(f"{checkpoint.path / MODEL_FILE}: {error}") from error


def load_training_state(checkpoint: Checkpoint, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Load the optimizers' state and torch's generators."""
    tensors = safetensors.torch.load_file(checkpoint.path / OPTIMIZER_FILE)
    parameters = dict(model.named_parameters())
    owners = {p: o for o in optimizers for group in o.param_groups for p in group["params"]}
    for name, tensor in tensors.items():
        key, _, parameter_name = name.partition(".")
        parameter = parameters[parameter_name]
        # AdamW keeps its step count in fp32 beside the parameter when fused, as the other state.
        tensor = tensor.to(parameter.device)
        if isinstance(parameter, DTensor) and tensor.shape == parameter.shape:
            tensor = distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
        owners[parameter].state[parameter][key] = tensor
    generators = safetensors.torch.load_file(checkpoint.path / RNG_FILE)
    torch.set_rng_state(generators["cpu"])
    if torch.cuda.is_available() and "cuda" in generators:
        torch.cuda.set_rng_state(generators["cuda"])


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint's folder."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])


def _gather(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


def _rng_tensors() -> dict[str, torch.Tensor]:
    tensors = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors


def _hash_files(folder: Path) -> dict[str, str]:
    digests: dict[str, str] = {}
    for name in (MODEL_FILE, OPTIMIZER_FILE, RNG_FILE, STATE_FILE):
        with (folder / name).open("rb") as file:
            digests[name] = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
    return digests
