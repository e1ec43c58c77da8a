"""Find the documents of a training step's batch: which, how many tokens of each, and from which source.

A row of a batch is a window of `seq_len + 1` tokens (the last one only as a target), whatever the micro-batches and
ranks. Reads the document tables of the batch's shards, and the text of the documents that are shown. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shards.errors import InputError, plural
from shards.format.reader import ShardSet
from shards.format.windows.order import Window, order_split
from shards.terminal.program import Row
from shards.trace.excerpt import Excerpt, read_excerpt
from shards.trace.locate import Place, find_window_documents
from trainer.checkpoint.folders import CheckpointError, CheckpointState, list_checkpoints, read_state
from trainer.metrics import METRICS_FILE, read_metrics
from trainer.recipe import FIXED_BY_CHECKPOINT, TrainConfig, find_changes, load_train_recipe, parse_recipe
from trainer.run_folder import RECIPE_FILE, read_set_record


class RowDocument(NamedTuple):
    """A document that has some tokens in a row of the batch."""

    batch_row: int
    """The row of the global batch, from 0."""
    window: Window
    """The row's tokens in the shard."""
    place: Place
    position: int
    """The first of the document's tokens in the window."""
    in_window: int
    """How many consecutive tokens of the document are in the window."""
    excerpt: Excerpt
    """Their text, and some of the document's text before and after."""

    def to_dict(self) -> Row:
        """Return the JSON object of the document in its row."""
        return {
            "batch_row": self.batch_row,
            "epoch": self.window.epoch,
            "window_start": self.window.start,
            "window_stop": self.window.stop,
            **self.place.to_dict(),
            "position": self.position,
            "in_window": self.in_window,
            **self.excerpt.to_dict(),
        }


@dataclass(frozen=True)
class TracedRun:
    """A run folder, as far as the order of its data goes."""

    folder: Path
    train: TrainConfig
    """The settings that decide the order."""
    last_step: int
    """The last step of the recipe, or the last one taken if that is later."""
    taken: int
    """The last step that metrics or a checkpoint show; a run that a fault stopped may have taken more."""
    manifest_sha256: str
    """Of the run's set."""
    notes: list[str]
    """What the user should know."""


def read_training_run(folder: Path) -> TracedRun:
    """Read from a run's folder what decides the documents of its steps; no tensor of a checkpoint is read or checked.

    Raises:
        InputError: the folder is not a run's, its recipe is not the one that its checkpoint was trained with, or
            it does not say which set the model was trained on.
        OSError: a file cannot be read.
    """
    recipe = load_train_recipe(folder / RECIPE_FILE)
    train = recipe.train
    # The recipe must be the one that the model was trained with.
    state, notes = _read_newest_state(folder)
    if state is not None:
        changes = find_changes(parse_recipe(state.recipe), recipe)
        fixed = [(key, values) for key, values in changes.items() if key.startswith(FIXED_BY_CHECKPOINT)]
        for key, (then, now) in fixed:
            found = f"{key} is {now}; the checkpoint of step {state.step} was trained with {then}"
            raise InputError(f"{folder / RECIPE_FILE}: {found}. Restore the recipe.")
        if state.samples != state.step * train.global_batch:
            found = f"step {state.step} is saved after {plural(state.samples, 'window')}"
            expected = f"expected {plural(train.global_batch, 'window')} per step"
            raise InputError(f"{folder}: {found}; {expected}. The windows of each step are not known.")
    records = read_metrics(folder) if (folder / METRICS_FILE).is_file() else []
    taken = max(records[-1]["step"] if records else 0, state.step if state else 0)
    sha256 = read_set_record(folder).manifest_sha256
    return TracedRun(folder, train, max(train.steps, taken), taken, sha256, notes)


def find_step_documents(
    shard_set: ShardSet, run: TracedRun, step: int, row: int | None = None, *, limit: int | None = 20
) -> tuple[Row, list[RowDocument], list[str]]:
    """Find the documents of a step's global batch.

    Args:
        shard_set: the set that the run was trained on.
        run: the run.
        step: the step, from 1 as in metrics; up to the last of the run's recipe, taken or not.
        row: a row of the global batch, from 0; every row if None.
        limit: how many documents to describe; all if None. All are counted.

    Returns:
        The batch: its `run`, `step` and `row`, whether metrics or a checkpoint show that the step was `taken`, `notes`,
            its `rows`, `tokens` and `documents`, for each of its `sources` the `documents`, each counted once, and
            their `tokens` in the batch, and `parts`, the documents of each row added up.
        The first documents, row by row.
        The content hashes of all documents, in hex and in order.

    Raises:
        InputError: the set is not the run's, there is no such step or row, or the tokenizer is not a byte-level one.
        ShardSetError: the set's files differ from the manifest.
        OSError: a file cannot be read.
    """
    _check_request(shard_set, run, step, row)
    notes = list(run.notes)
    if step > run.taken:
        notes.append(
            f"{run.folder} records {plural(run.taken, 'step')} taken; step {step} has, or would have, this batch"
        )
    vocabulary = shard_set.vocabulary
    # The same order that the run went through.
    shards = shard_set.splits["train"]
    order = order_split(shard_set, seq_len=run.train.seq_len, seed=run.train.seed)

    rows = run.train.global_batch if row is None else 1
    first_window = (step - 1) * run.train.global_batch + (row or 0)
    parts, hashes = 0, set[str]()
    sources: dict[str, dict[str, int]] = {}
    found: list[RowDocument] = []
    for number, (window, places) in enumerate(find_window_documents(shards, order, first_window, rows), row or 0):
        for place in places:
            # The part of the document that is in the window, in tokens of the document.
            first = max(window.start - place.start, 0)
            last = min(window.stop - place.start, place.tokens)
            counts = sources.setdefault(place.source, {"documents": 0, "tokens": 0})
            counts["tokens"] += last - first
            counts["documents"] += place.hash not in hashes
            hashes.add(place.hash)
            parts += 1
            if limit is None or len(found) < limit:
                _, excerpt = read_excerpt(shards[window.shard], place, first, last, vocabulary=vocabulary)
                found.append(RowDocument(number, window, place, first, last - first, excerpt))
    # Counts are of all documents, whatever is shown.
    asked: Row = {"run": str(run.folder), "step": step, "row": row, "taken": step <= run.taken, "notes": notes}
    tokens = sum(counts["tokens"] for counts in sources.values())
    batch = asked | {"rows": rows, "tokens": tokens, "documents": len(hashes), "sources": sources, "parts": parts}
    return batch, found, sorted(hashes)


def _check_request(shard_set: ShardSet, run: TracedRun, step: int, row: int | None) -> None:
    if run.manifest_sha256 != shard_set.manifest_sha256:
        raise InputError(
            f"{run.folder}: was trained on the set with the manifest sha256 {run.manifest_sha256}; "
            f"{shard_set.store} has {shard_set.manifest_sha256}. Give the set it was trained on with --shards."
        )
    if step > run.last_step:
        raise InputError(f"no step {step} in {run.folder}; its recipe has {run.last_step}, counted from 1")
    if row is not None and row >= run.train.global_batch:
        raise InputError(f"no row {row} in a global batch of {run.train.global_batch}, counted from 0")


def _read_newest_state(folder: Path) -> tuple[CheckpointState | None, list[str]]:
    """Return the newest checkpoint's state that can be read, and a note for each one that cannot.

    Raises:
        InputError: there are checkpoints, and none can be read.
    """
    notes: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            return read_state(path), notes
        except (CheckpointError, OSError) as error:  # corrupt, or the run has just deleted it
            notes.append(f"{error}. The checkpoint before it is used.")
    if notes:
        raise InputError([*notes, f"{folder}: no checkpoint is left that says which set the model was trained on"])
    return None, notes
