"""Where a run goes on: the checkpoint that it resumes or begins from, whether recipe and set fit, what has changed."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shards import ShardSet
from shards.config import Document, item_names, list_of, show_value, table_of
from shards.errors import InputError
from shards.terminal.reporter import Note
from trainer.checkpoint.folders import Checkpoint, find_newest_checkpoint, read_checkpoint
from trainer.metrics import METRICS_FILE
from trainer.optim import learning_rate
from trainer.recipe import TrainRecipe
from trainer.run_folder import RecipeChange, RunRecord, find_run_record
from trainer.weights.given_weights import GivenWeights

FIXED_BY_CHECKPOINT = (
    "model.",
    "train.seq_len",
    "train.rows",
    "train.global_batch",
    "train.seed",
    "train.rehearsal",
    "optimizer.kind",
)
"""Keys, or prefixes of keys, that decide a checkpoint's weights or the order of the data. A resumed run keeps them."""

CHANGED = "changed since the checkpoint"


def find_resume_start(run: Path, start: Path | None, given: GivenWeights | None, say: Note) -> Checkpoint | None:
    """Return the newest checkpoint of a run; if it has none, the one that it is to begin from, or None.

    Args:
        run: the run's folder.
        start: the checkpoint of another run that this one begins from, by `locate_checkpoint`.
        given: the weights that it begins with.
        say: called with a message for each corrupt checkpoint that is newer.

    Raises:
        InputError: `start` is not a whole checkpoint and is needed, or the run began otherwise.
    """
    # A run that has begun goes on by itself, if it began so.
    newest, record = find_newest_checkpoint(run, say), find_run_record(run)
    if newest is not None or (run / METRICS_FILE).exists():
        began, weights = (record.start, record.weights_sha256) if record else (None, None)
        if start and began != str(start):
            raise InputError(
                f"{run}: began from {began or 'step 0'}, not from {start}. Choose another run folder, or leave --from "
                "out to resume it."
            )
        if weights != (given.sha256 if given else None) and (given or (newest is None and start is None)):
            had = f"the weights of {record.weights} ({weights})" if record and weights else "no weights of another"
            asked = f"those of {given.place} ({given.sha256})" if given else "none"
            raise InputError(
                f"{run}: began with {had}; --weights gives {asked}. Choose another run folder, or begin as it began."
            )
    return newest or (read_checkpoint(start) if start else None)


def check_resume_fits(found: Checkpoint, recipe: TrainRecipe, shard_set: ShardSet, say: Note) -> TrainRecipe:
    """Refuse a checkpoint of other data or another model; print the other changes of the recipe.

    Returns:
        The recipe to go on with: the checkpoint's if no step is left, since no step would have the changes.

    Raises:
        InputError: with every reason.
    """
    # Other data or another model cannot go on.
    problems: list[str] = []
    if (given := found.state.manifest_sha256) != shard_set.manifest_sha256:
        problems.append(
            f"{found.path}: manifest sha256 {given}; {shard_set.store} has {shard_set.manifest_sha256}. Use the set it "
            "was trained on."
        )
    earlier, step = found.recipe, found.state.step
    changes, remedy = find_changes(earlier, recipe), "Keep it, or start a new run."
    finished = step >= max(earlier.train.steps, recipe.train.steps)
    what = f"without effect, as all {step:,} steps are done" if finished else CHANGED
    for key in [*changes]:
        if key.startswith(FIXED_BY_CHECKPOINT):
            old, new = changes.pop(key)
            problems.append(f"{found.path}: {key} = {_show(old)}; the recipe has {_show(new)}. {remedy}")
    for change in describe_changes(changes):
        say(f"{what}: {change}")
    if problems:
        raise InputError(problems)
    if finished:
        if changes:
            say("Raise train.steps to go on with them, or begin a new run; `tokenmill eval` scores on other sets.")
        return earlier
    # A jump of the learning rate is allowed, and said.
    if step < recipe.train.steps:
        before, after = (learning_rate(min(step, one.train.steps - 1), one) for one in (earlier, recipe))
        if before != after:
            say(f"{CHANGED}: the learning rate of step {step + 1} = {after:.3g}, not {before:.3g}")
    return recipe


def list_keys(tables: Document, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a train recipe, or of a line of the metrics, with their values; tables of a list go by
    their names.

    Empty lists are left out: a list of tables that is empty has no key.
    """
    for key, value in tables.items():
        items = list_of(value)
        if items and all(isinstance(item, dict) for item in items):
            value = dict(zip(item_names(items), items, strict=True))
        if isinstance(value, dict):
            yield from list_keys(table_of(value), f"{place}{key}.")
        elif value != []:
            yield f"{place}{key}", value


def find_changes(old: TrainRecipe, new: TrainRecipe) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys of a train recipe whose values differ in another, each with its (old, new) values.

    The value of a key that a recipe does not have, such as one of an eval task that was removed, is None.
    """
    before, after = (dict(list_keys(recipe.model_dump(mode="json"))) for recipe in (old, new))
    values = {key: (before.get(key), after.get(key)) for key in dict.fromkeys([*before, *after])}
    return {key: (then, now) for key, (then, now) in values.items() if then != now}


def describe_changes(changes: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Yield in words each change of a train recipe, by keys with their (old, new) values; a table is new or gone."""
    for key, (old, new) in changes.items():
        table, _, last = key.rpartition(".")
        if last == "name" and None in (old, new):
            yield f"{table} is {'gone' if new is None else 'new'}"
        elif None not in changes.get(f"{table}.name", ()):  # keys of such a table are not listed
            yield f"{key} = {_show(new)}, not {_show(old)}"


def describe_beginning(run: Path, found: Checkpoint, recipe: TrainRecipe, record: RunRecord) -> RunRecord:
    """Return a run's record with the past of the run that it goes on from, by a checkpoint.

    Steps that were taken after the checkpoint are taken again, so what was changed for them no longer counts.
    """
    step, earlier = found.state.step, find_run_record(found.run) or record
    changes = [change for change in earlier.changes if change.after_step < step]
    keys = {key: list(values) for key, values in find_changes(found.recipe, recipe).items()}
    if step and keys:
        changes.append(RecipeChange(after_step=step, keys=keys))
    return record.with_values(
        start=earlier.start if found.run == run.resolve() else str(found.path),
        weights=earlier.weights,
        weights_sha256=earlier.weights_sha256,
        changes=changes,
        # A phase that was changed has other gates.
        passed=[one for one in earlier.passed if not any(key.startswith(f"phases.{one[0]}.") for key in keys)],
        processes=earlier.processes,
    )


def _show(value: Any) -> str:
    return "nothing" if value is None else show_value(value, 500)
