"""Everything a run needs before its first step: checked, loaded, and refused with all reasons when it does not fit.

Refused: a set that fails quick validation, splits too small, a run folder in use, and at resume another manifest,
tokenizer or vocabulary than the checkpoint's, or a recipe that changes the model or the order of the data. Other
changes of the recipe are allowed and said.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import filelock
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from shards import ShardSet, ShardSetError, open_set
from shards.samples import SampleOrder
from shards.validate import validate
from shards.writer import write_text
from trainer import checkpoint
from trainer.checkpoint import Checkpoint, CheckpointState
from trainer.config import FIXED_BY_CHECKPOINT, TrainRecipe
from trainer.device import choose_device, choose_precision, peak_flops
from trainer.errors import InputError
from trainer.metrics import MetricsLog
from trainer.model import LanguageModel, build_model, count_parameters, flops_per_token
from trainer.optim import build_optimizers
from trainer.recipe import find_changes, parse_recipe
from trainer.vocabulary import count_token_bytes, hash_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

RECIPE_FILE, TOKENIZER_FILE, LOCK_FILE = "recipe.json", "tokenizer.json", ".lock"

Say = Callable[[str], None]


@dataclass
class Session:
    """A run that is ready to take its next step."""

    run: Path
    recipe: TrainRecipe
    shard_set: ShardSet
    order: SampleOrder
    token_bytes: npt.NDArray[np.int64] | None
    model: LanguageModel
    forward: nn.Module
    """The model, or what wraps it to add up gradients over ranks."""
    optimizers: list[torch.optim.Optimizer]
    device: torch.device
    precision: Literal["fp32", "bf16"]
    lock: filelock.BaseFileLock | None
    rank: int
    ranks: int
    flops_per_token: float
    peak_flops: float | None
    """Of all ranks together, per second."""
    step: int = 0
    """Steps done."""
    samples: int = 0
    """Samples consumed."""
    seconds: float = 0.0
    """Time taken by the processes before this one."""
    saved: Path | None = None
    """The newest checkpoint."""

    def save(self, *, seconds: float, keep_steps: set[int]) -> Path:
        """Write a checkpoint of this moment; called by every rank.

        Raises:
            OSError: it could not be written; the previous checkpoints are untouched.
        """
        state = CheckpointState(
            step=self.step,
            samples=self.samples,
            seconds=seconds,
            recipe=self.recipe.model_dump(mode="json"),
            vocab_size=self.model.vocab_size,
            eos_id=self.shard_set.eos_id,
            manifest_sha256=self.shard_set.manifest_sha256,
            tokenizer_sha256=self.shard_set.manifest.tokenizer.sha256,
        )
        self.saved = checkpoint.save_checkpoint(
            self.run,
            state,
            self.model,
            self.optimizers,
            keep_last=self.recipe.checkpoint.keep_last,
            keep_steps=keep_steps,
            write=self.rank == 0,
        )
        return self.saved

    def close(self) -> None:
        """Let go of the run folder and of the other ranks."""
        if self.lock is not None:
            self.lock.release()
        if dist.is_initialized():
            dist.destroy_process_group()


def open_session(recipe: TrainRecipe, shards_path: Path, run: Path, *, resume: str, say: Say) -> Session:
    """Check everything, load or build the model, and prepare the run folder. Every rank calls it.

    Args:
        recipe: what to train.
        shards_path: the shard set's folder.
        run: the run's folder, made when absent.
        resume: `auto` (the newest whole checkpoint, else from the start), `never`, or a checkpoint's folder.
        say: called with each line the user should know.

    Raises:
        InputError: the run cannot start; with every reason known. Nothing of an earlier run is deleted.
        OSError: the run folder is not writable.
    """
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    train = recipe.train
    shard_set = _open_valid_set(shards_path)
    vocab_size = recipe.model.vocab_size or shard_set.vocab_size
    order = _plan_samples(shard_set, recipe, ranks, say)
    device = choose_device(train.device)
    precision = choose_precision(train.precision, device)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    lock = _lock_run(run) if rank == 0 else None
    try:
        found = _find_checkpoint(run, resume, say)
        if found is not None:
            _check_fits(found, recipe, shard_set, vocab_size, say)
        # Nothing of an earlier run has been touched so far; the other ranks have read what they need, too.
        _wait_for_ranks()
        if rank == 0:
            _prepare_run(run, recipe, shard_set, vocab_size, found, say)
        torch.manual_seed(train.seed)
        model = build_model(recipe.model, vocab_size, seed=train.seed)
        model.activation_checkpointing = train.activation_checkpointing
        if found is not None:
            checkpoint.load_weights(found, model)
        model.to(device)
        forward = _spread(model, recipe, device, ranks)
        optimizers = build_optimizers(model, recipe.optimizer)
        token_bytes = count_token_bytes(shard_set.tokenizer(), shard_set.vocab_size)
        flops, peak = (
            flops_per_token(recipe.model, vocab_size, train.seq_len),
            peak_flops(device, recipe.cost.peak_tflops),
        )
        peak = peak * ranks if peak is not None else None
        where = (device, precision, lock, rank, ranks, flops, peak)
        session = Session(run, recipe, shard_set, order, token_bytes, model, forward, optimizers, *where)
        if found is not None:
            checkpoint.load_training_state(found, model, optimizers)
            session.step, session.samples, session.saved = found.state.step, found.state.samples, found.path
            session.seconds = found.state.seconds
            say(f"resumed from {found.path}")
        if token_bytes is None:
            say("bits a byte are not reported: the tokenizer is not byte-level, so its tokens have no certain length")
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    return session


def open_metrics(session: Session, say: Say) -> MetricsLog:
    """Open the run's metrics log after the session's step."""
    if session.rank != 0:
        _wait_for_ranks()
    log = MetricsLog(session.run, step=session.step, write=session.rank == 0)
    if session.rank == 0:
        _wait_for_ranks()
    session.seconds = max(session.seconds, log.seconds)
    if log.removed and session.rank == 0:
        say(f"metrics.jsonl: removed {log.removed} lines after step {session.step}; these steps are done again")
    return log


def _wait_for_ranks() -> None:
    if dist.is_initialized():
        dist.barrier()


def _prepare_run(
    run: Path, recipe: TrainRecipe, shard_set: ShardSet, vocab_size: int, found: Checkpoint | None, say: Say
) -> None:
    for path in checkpoint.clear_leftovers(run, after_step=found.state.step if found else None):
        say(f"{path}: corrupt, kept under this name; delete it when you do not need it")
    # Weights and two moments in fp32; a disk that cannot hold one checkpoint is better known now than after an hour.
    size = 12 * count_parameters(recipe.model, vocab_size)
    checkpoint.check_disk(run, size, f"{run}: a checkpoint")
    wanted = size * (recipe.checkpoint.keep_last + 2 + len(recipe.milestones))
    if shutil.disk_usage(run).free < wanted:
        say(f"{run}: the disk has less free than the {wanted / 1e9:.1f} GB that all checkpoints to be kept will take")
    shutil.copyfile(shard_set.path / shard_set.manifest.tokenizer.file, run / TOKENIZER_FILE)
    write_text(run / RECIPE_FILE, recipe.model_dump_json(indent=2) + "\n")


def _spread(model: LanguageModel, recipe: TrainRecipe, device: torch.device, ranks: int) -> nn.Module:
    """Compile the model where asked to, and spread it over the ranks; return what to call in a training step."""
    sharded = ranks > 1 and recipe.train.parallel == "fsdp"
    if recipe.train.compile:
        for part in model.model.layers if sharded else [model]:
            part.compile()
    if not sharded:
        devices = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices) if ranks > 1 else model
    mesh = torch.distributed.device_mesh.init_device_mesh(device.type, (ranks,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _open_valid_set(path: Path) -> ShardSet:
    try:
        problems = [str(problem) for problem in validate(path, level="quick").problems]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}. Expected the folder of a shard set.") from error
    if problems:
        raise InputError([*problems, f"{path}: not a valid shard set; see `python -m shards validate {path}`"])
    try:
        shard_set = open_set(path)
        file = shard_set.path / shard_set.manifest.tokenizer.file
        if hash_file(file) != shard_set.manifest.tokenizer.sha256:
            raise InputError(f"{file}: its sha256 is not the one in the manifest; restore the file or re-run the build")
    except ShardSetError as error:
        raise InputError([str(problem) for problem in error.problems]) from error
    return shard_set


def _lock_run(run: Path) -> filelock.BaseFileLock:
    """Make the run folder and lock it for this process; the lock goes with the process, however it ends."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(run / LOCK_FILE, timeout=0)
        lock.acquire()
    except filelock.Timeout as error:
        raise InputError(f"{run}: another process is training here. Wait for it, or choose another folder.") from error
    except OSError as error:
        raise InputError(f"{run}: cannot be used as a run folder: {error.strerror}") from error
    return lock


def _plan_samples(shard_set: ShardSet, recipe: TrainRecipe, ranks: int, say: Say) -> SampleOrder:
    seq_len, batch = recipe.train.seq_len, recipe.train.global_batch
    train = shard_set.splits.get("train", ())
    order = SampleOrder([shard.num_tokens for shard in train], seq_len=seq_len, seed=recipe.train.seed)
    problems: list[str] = []
    if batch % (recipe.train.micro_batch * ranks):
        problems.append(
            f"train.global_batch = {batch} with train.micro_batch = {recipe.train.micro_batch} on {ranks} ranks: the "
            "global batch must be a whole number of micro-batches of all ranks. Choose another micro_batch."
        )
    if recipe.model.vocab_size is not None and recipe.model.vocab_size < shard_set.vocab_size:
        problems.append(
            f"model.vocab_size = {recipe.model.vocab_size}: {shard_set.path} has ids up to {shard_set.vocab_size - 1}. "
            f"Choose vocab_size = {shard_set.vocab_size} or leave it out."
        )
    total = sum(shard.num_tokens for shard in train)
    if order.per_epoch < batch:
        problems.append(
            f"{shard_set.path}: the train split's {total} tokens in {len(train)} shards hold {order.per_epoch} windows "
            f"of {seq_len} + 1 tokens; expected at least train.global_batch = {batch}. "
            "Build a larger set, or lower seq_len or global_batch."
        )
    if not any(shard.num_tokens > 1 for shard in shard_set.splits.get("val", ())):
        problems.append(
            f"{shard_set.path}: the val split has no token to predict. Build the set with a larger split.val_tokens."
        )
    if problems:
        raise InputError(problems)
    if order.short_shards:
        names = ", ".join(train[index].name for index in order.short_shards[:5])
        say(f"{len(order.short_shards)} shards are shorter than one window of {seq_len} + 1 tokens: not used ({names})")
    say(
        f"{total:,} train tokens: {order.per_epoch:,} windows of {seq_len}, "
        f"{order.cropped:,} tokens ({order.cropped / total:.2%}) at shard ends are never predicted"
    )
    return order


def _find_checkpoint(run: Path, resume: str, say: Say) -> Checkpoint | None:
    present = checkpoint.list_checkpoints(run)
    if resume == "never":
        if present:
            raise InputError(
                f"{run}: holds checkpoints up to {present[-1].name}; --resume never starts anew and deletes nothing. "
                "Choose another run folder, or --resume auto."
            )
        return None
    if resume == "auto":
        return checkpoint.find_newest(run, say)
    path = Path(resume)
    found = checkpoint.read_checkpoint(path)
    later = [other.name for other in present if other.name > checkpoint.checkpoint_path(run, found.state.step).name]
    if later:
        raise InputError(
            f"{run}: holds later checkpoints than {path} ({', '.join(later)}), which are not deleted. "
            "Resume from it in another run folder."
        )
    return found


def _check_fits(found: Checkpoint, recipe: TrainRecipe, shard_set: ShardSet, vocab_size: int, say: Say) -> None:
    """Refuse a checkpoint of other data or another model; say what else of the recipe changed."""
    state, manifest = found.state, shard_set.manifest
    pairs = [
        ("manifest sha256", state.manifest_sha256, shard_set.manifest_sha256, "Use the set it was trained on."),
        ("tokenizer sha256", state.tokenizer_sha256, manifest.tokenizer.sha256, "Use the same tokenizer."),
        ("vocab_size", state.vocab_size, vocab_size, "Use the same tokenizer."),
        ("eos_id", state.eos_id, shard_set.eos_id, "Use the same tokenizer."),
    ]
    problems = [
        f"{found.path}: {what} {old}; {shard_set.path} has {new}. {remedy}"
        for what, old, new, remedy in pairs
        if old != new
    ]
    for key, (old, new) in find_changes(parse_recipe(state.recipe), recipe).items():
        if key.startswith(FIXED_BY_CHECKPOINT):
            problems.append(f"{found.path}: {key} = {old!r}; the recipe has {new!r}. Keep it, or start a new run.")
        else:
            say(f"changed since the checkpoint: {key} = {old!r} is now {new!r}")
    if problems:
        raise InputError(problems)
