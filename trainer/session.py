"""Everything a run needs before its first step: checked, loaded, and refused with all reasons when it does not fit.

Refused: a set that fails quick validation, splits too small, a run folder in use, and at resume another manifest,
tokenizer or vocabulary than the checkpoint's, or a recipe that changes the model or the order of the data. Other
changes of the recipe are allowed and said.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import filelock
import torch

from shards import ShardSet, ShardSetError, open_set
from shards.validate import validate
from shards.writer import write_text
from trainer import checkpoint
from trainer.checkpoint import Checkpoint, CheckpointState
from trainer.config import FIXED_BY_CHECKPOINT, TrainRecipe
from trainer.data import SampleOrder
from trainer.device import choose_device, choose_precision
from trainer.errors import InputError
from trainer.metrics import MetricsLog
from trainer.model import Llama, build_model
from trainer.optim import build_optimizer
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
    model: Llama
    optimizer: torch.optim.Optimizer
    device: torch.device
    precision: Literal["fp32", "bf16"]
    lock: filelock.BaseFileLock
    step: int = 0
    """Steps done."""
    samples: int = 0
    """Samples consumed."""
    saved: Path | None = None
    """The newest checkpoint."""

    def save(self) -> Path:
        """Write a checkpoint of this moment.

        Raises:
            OSError: it could not be written; the previous checkpoints are untouched.
        """
        state = CheckpointState(
            step=self.step,
            samples=self.samples,
            recipe=self.recipe.model_dump(mode="json"),
            vocab_size=self.shard_set.vocab_size,
            eos_id=self.shard_set.eos_id,
            manifest_sha256=self.shard_set.manifest_sha256,
            tokenizer_sha256=self.shard_set.manifest.tokenizer.sha256,
        )
        keep_last = self.recipe.checkpoint.keep_last
        self.saved = checkpoint.save_checkpoint(self.run, state, self.model, self.optimizer, keep_last=keep_last)
        return self.saved


def open_session(recipe: TrainRecipe, shards_path: Path, run: Path, *, resume: str, say: Say) -> Session:
    """Check everything, load or build the model, and prepare the run folder.

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
    shard_set = _open_valid_set(shards_path)
    order = _plan_samples(shard_set, recipe, say)
    device = choose_device()
    precision = choose_precision(recipe.train.precision, device)
    lock = _lock_run(run)
    try:
        found = _find_checkpoint(run, resume, say)
        if found is not None:
            _check_fits(found, recipe, shard_set, say)
        # Nothing of an earlier run has been touched so far.
        for path in checkpoint.clear_leftovers(run, after_step=found.state.step if found else None):
            say(f"{path}: corrupt, kept under this name; delete it when you do not need it")
        torch.manual_seed(recipe.train.seed)
        model = build_model(recipe.model, shard_set.vocab_size, seed=recipe.train.seed)
        if found is not None:
            checkpoint.load_weights(found, model)
        model.to(device)
        optimizer = build_optimizer(model, recipe.optimizer)
        token_bytes = count_token_bytes(shard_set.tokenizer(), shard_set.vocab_size)
        session = Session(run, recipe, shard_set, order, token_bytes, model, optimizer, device, precision, lock)
        if found is not None:
            checkpoint.load_training_state(found, model, optimizer)
            session.step, session.samples, session.saved = found.state.step, found.state.samples, found.path
            say(f"resumed from {found.path}")
        if token_bytes is None:
            say("bits a byte are not reported: the tokenizer is not byte-level, so its tokens have no certain length")
        shutil.copyfile(shard_set.path / shard_set.manifest.tokenizer.file, run / TOKENIZER_FILE)
        write_text(run / RECIPE_FILE, recipe.model_dump_json(indent=2) + "\n")
    except BaseException:
        lock.release()
        raise
    return session


def open_metrics(session: Session, say: Say) -> MetricsLog:
    """Open the run's metrics log after the session's step."""
    log = MetricsLog(session.run, step=session.step)
    if log.removed:
        say(f"metrics.jsonl: removed {log.removed} lines after step {session.step}; these steps are done again")
    return log


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


def _plan_samples(shard_set: ShardSet, recipe: TrainRecipe, say: Say) -> SampleOrder:
    seq_len, batch = recipe.train.seq_len, recipe.train.global_batch
    train = shard_set.splits.get("train", ())
    order = SampleOrder([shard.num_tokens for shard in train], seq_len=seq_len, seed=recipe.train.seed)
    problems: list[str] = []
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


def _check_fits(found: Checkpoint, recipe: TrainRecipe, shard_set: ShardSet, say: Say) -> None:
    """Refuse a checkpoint of other data or another model; say what else of the recipe changed."""
    state, manifest = found.state, shard_set.manifest
    pairs = [
        ("manifest sha256", state.manifest_sha256, shard_set.manifest_sha256, "Use the set it was trained on."),
        ("tokenizer sha256", state.tokenizer_sha256, manifest.tokenizer.sha256, "Use the same tokenizer."),
        ("vocab_size", state.vocab_size, shard_set.vocab_size, "Use the same tokenizer."),
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
