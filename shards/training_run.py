"""What the folder of a training run says of the order of its data: which set, which windows, how many steps.

The trainer's files are read as JSON, and only the keys that decide the order are checked: `recipe.json`, the newest
readable `checkpoints/step-*/state.json` (with the digest of the set's manifest) and the last line of `metrics.jsonl`.
A run without a checkpoint names no set; then its copy of the tokenizer is compared, and a note says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, PositiveInt, ValidationError

from shards.config import Settings, load_settings
from shards.format.manifest import Sha256
from shards.format.order import WindowOrder
from shards.format.reader import ShardSet

_CHECKPOINT = re.compile(r"step-(\d{8,})")
_TAIL_BYTES = 1 << 20
"""A line of the metrics is some hundred bytes, more with many sources; the last one lies in here."""


class _Model(Settings):
    """Some keys of a file; the others are not our business."""

    model_config = ConfigDict(extra="ignore")


class _Train(_Model):
    seq_len: PositiveInt
    global_batch: PositiveInt
    seed: Annotated[int, Field(ge=0, lt=1 << 32)]
    steps: PositiveInt


class _Recipe(_Model):
    train: _Train


class _State(_Model):
    step: Annotated[int, Field(ge=0)]
    samples: Annotated[int, Field(ge=0)]
    manifest_sha256: Sha256
    recipe: _Recipe


class _Line(_Model):
    step: Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class TrainingRun:
    """A run, as far as the order of its data goes.

    Attributes:
        folder: the run's folder.
        seq_len: tokens predicted in each sample.
        global_batch: samples in a step.
        seed: decides the order.
        steps: the last step of its recipe, or the last one taken where that is more.
        taken: the last step that metrics or a checkpoint tell of; a run stopped by a fault may have taken more.
        manifest_sha256: digest of its set's manifest; None where there is no checkpoint that says.
        notes: what the user should know.
    """

    folder: Path
    seq_len: int
    global_batch: int
    seed: int
    steps: int
    taken: int
    manifest_sha256: str | None
    notes: tuple[str, ...] = ()


def read_run(folder: Path) -> TrainingRun:
    """Read a run's folder.

    Raises:
        ValueError: it is no run's folder, its recipe is not the one that its checkpoint was trained with, or no
            checkpoint can be read though there are some.
        OSError: a file cannot be read.
    """
    file = folder / "recipe.json"
    if not file.is_file():
        raise ValueError(f"{file}: no such file. Give the folder that a training run was told to write to.")
    recipe = load_settings(_Recipe, file).train
    state, notes = _read_newest_state(folder)
    if state is not None:
        for key in ("seq_len", "global_batch", "seed"):
            now, then = getattr(recipe, key), getattr(state.recipe.train, key)
            if now != then:
                message = f"{file}: train.{key} is {now}; the checkpoint of step {state.step} was trained with {then}"
                raise ValueError(f"{message}. Restore the recipe.")
        if state.samples != state.step * recipe.global_batch:
            message = f"step {state.step} after {state.samples} samples, with {recipe.global_batch} samples a step"
            raise ValueError(f"{folder}: a checkpoint of {message}: what was read when is not known.")
    taken = max(_last_step(folder / "metrics.jsonl"), state.step if state else 0)
    manifest_sha256 = state.manifest_sha256 if state else None
    order = (recipe.seq_len, recipe.global_batch, recipe.seed)
    return TrainingRun(folder, *order, max(recipe.steps, taken), taken, manifest_sha256, tuple(notes))


def check_set(run: TrainingRun, shard_set: ShardSet) -> list[str]:
    """Check that a set is the one that a run was trained on, and return what the user should know of that.

    Raises:
        ValueError: it is another.
        OSError: a file cannot be read.
    """
    if run.manifest_sha256 is not None:
        if run.manifest_sha256 != shard_set.manifest_sha256:
            raise ValueError(
                f"{run.folder}: was trained on the set with the manifest sha256 {run.manifest_sha256}; "
                f"{shard_set.path} has {shard_set.manifest_sha256}. Give the set it was trained on."
            )
        return []
    file, expected = run.folder / "tokenizer.json", shard_set.manifest.tokenizer.sha256
    found = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
    if found != expected:
        raise ValueError(
            f"{file}: {f'its sha256 is {found}' if found else 'no such file'}; the tokenizer of {shard_set.path} has "
            f"{expected}. Give the set the run was trained on."
        )
    return [
        f"{run.folder}: no checkpoint names its set yet; that it is {shard_set.path} is known by the tokenizer alone"
    ]


def window_order(run: TrainingRun, shard_set: ShardSet) -> WindowOrder:
    """Return the order in which a run reads a set's training split.

    Raises:
        ValueError: the set is too small to be the run's.
    """
    tokens = [shard.num_tokens for shard in shard_set.splits.get("train", ())]
    order = WindowOrder(tokens, seq_len=run.seq_len, seed=run.seed)
    if not order.per_epoch:
        message = f"no training shard holds a window of {run.seq_len} + 1 tokens. Give the set the run was trained on."
        raise ValueError(f"{shard_set.path}: {message}")
    return order


def _read_newest_state(folder: Path) -> tuple[_State | None, list[str]]:
    """Return the newest checkpoint's state that can be read, and a line for each one passed over.

    Raises:
        ValueError: there are checkpoints, and none can be read.
    """
    parent = folder / "checkpoints"
    names = {int(m[1]): path for path in parent.glob("step-*") if (m := _CHECKPOINT.fullmatch(path.name))}
    notes: list[str] = []
    for _, path in sorted(names.items(), reverse=True):
        try:
            return load_settings(_State, path / "state.json"), notes
        except (ValueError, OSError) as error:  # corrupt, or the run has just deleted it
            notes.append(f"{error}. Passed over.")
    if notes:
        raise ValueError("\n".join([*notes, f"{folder}: no checkpoint is left that says which set it was trained on"]))
    return None, notes


def _last_step(metrics: Path) -> int:
    """Return the step of the last whole line; 0 where there is none."""
    if not metrics.is_file():
        return 0
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - _TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    for line in reversed(lines):
        with contextlib.suppress(ValidationError):  # of a line that a crash cut off
            return _Line.model_validate_json(line).step
    return 0
