"""Where a run goes on: the checkpoint that it resumes or begins from, and whether the recipe and the set fit it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shards import ShardSet
from shards.config import show_value
from shards.errors import InputError
from shards.terminal.reporter import Note
from trainer.checkpoint.folders import (
    Checkpoint,
    find_newest_checkpoint,
    read_checkpoint,
)
from trainer.metrics import METRICS_FILE
from trainer.optim import learning_rate
from trainer.recipe import FIXED_BY_CHECKPOINT, TrainRecipe, find_changes, parse_recipe
from trainer.run_folder import read_start_record


def find_resume_start(run: Path, start: Path, say: Note) -> Checkpoint:
    """Return the newest checkpoint of a run that began from the checkpoint `start`; `start` if it has none.

    Raises:
        InputError: `start` is not a whole checkpoint and is needed, or the run began otherwise.
    """
    # A run that has begun goes on by itself, if it began from this checkpoint.
    newest, record = find_newest_checkpoint(run, say), read_start_record(run)
    has_begun = newest is not None or (run / METRICS_FILE).exists()
    if has_begun and (record is None or record.checkpoint != str(start.resolve())):
        began = "from step 0" if record is None else f"from {record.checkpoint}"
        raise InputError(
            f"{run}: has begun {began}, not from {start}. Choose another run folder, or leave --from out to resume it."
        )
    return newest or read_checkpoint(start)


def check_resume_fits(found: Checkpoint, recipe: TrainRecipe, shard_set: ShardSet, say: Note) -> None:
    """Refuse a checkpoint of other data or another model; print the other changes of the recipe.

    Raises:
        InputError: with every reason.
    """
    # Other data or another model cannot go on.
    problems: list[str] = []
    if found.state.manifest_sha256 != shard_set.manifest_sha256:
        digests = f"manifest sha256 {found.state.manifest_sha256}; {shard_set.store} has {shard_set.manifest_sha256}"
        problems.append(f"{found.path}: {digests}. Use the set it was trained on.")
    earlier = parse_recipe(found.state.recipe)
    changes, remedy = find_changes(earlier, recipe), "Keep it, or start a new run."
    for key, (old, new) in changes.items():
        if key.startswith(FIXED_BY_CHECKPOINT):
            problems.append(f"{found.path}: {key} = {_show(old)}; the recipe has {_show(new)}. {remedy}")
        elif key.endswith(".name") and None in (old, new):
            say(f"changed since the checkpoint: {key.removesuffix('.name')} is {'gone' if new is None else 'new'}")
        elif None not in changes.get(f"{key.rpartition('.')[0]}.name", ()):  # keys of such a table are not listed
            say(f"changed since the checkpoint: {key} = {_show(old)} is now {_show(new)}")
    if problems:
        raise InputError(problems)
    # A jump of the learning rate is allowed, and said.
    step = found.state.step
    if step < recipe.train.steps:
        before, now = (learning_rate(min(step, one.train.steps - 1), one) for one in (earlier, recipe))
        if before != now:
            rates = f"{before:.3g} is now {now:.3g}"
            say(f"changed since the checkpoint: the learning rate of step {step + 1} = {rates}")


def _show(value: Any) -> str:
    return "nothing" if value is None else show_value(value)
