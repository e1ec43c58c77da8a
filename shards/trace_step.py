"""From a step of a training run to the documents of its batch: which, how much of each, and where they are from.

A row of a batch is a window of `seq_len + 1` tokens (the last one only as a target), whatever the micro-batches and
ranks. Reads the document tables of the batch's shards, and the text of the documents that are shown.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.format.order import Window, find_documents, row_window
from shards.format.reader import ShardSet
from shards.trace.locate import Excerpt, Place, read_excerpt
from shards.training_run import TrainingRun, check_set, window_order

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class RowDocument:
    """A document of which a row of the batch holds some tokens.

    Attributes:
        batch_row: the row of the global batch, from 0.
        window: the row's tokens in the shard.
        place: the document.
        position: the first of its tokens that is in the window.
        in_window: how many of its tokens, one after another, are.
        excerpt: their text, with the document's text around.
    """

    batch_row: int
    window: Window
    place: Place
    position: int
    in_window: int
    excerpt: Excerpt

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the document in its row."""
        window = {"epoch": self.window.epoch, "window_start": self.window.start, "window_stop": self.window.stop}
        here = {"position": self.position, "in_window": self.in_window}
        return {"batch_row": self.batch_row} | window | self.place.to_dict() | here | self.excerpt.to_dict()


@dataclass
class BatchSource:
    """What a batch holds of one source: documents, each counted once, and tokens."""

    documents: int = 0
    tokens: int = 0


@dataclass
class Batch:
    """The documents of a step's batch, or of one row of it.

    `shown` are the first documents, row by row; `hashes` uint8 `(documents, 16)` are of all, each document once.
    """

    run: Path
    step: int
    row: int | None
    taken: bool
    """Whether the run's metrics or a checkpoint tell that the step was taken."""
    notes: list[str]
    rows: int = 0
    tokens: int = 0
    documents: int = 0
    sources: dict[str, BatchSource] = field(default_factory=dict[str, BatchSource])
    parts: int = 0
    """Documents of each row, added up: one in two rows counts twice."""
    shown: list[RowDocument] = field(default_factory=list[RowDocument])
    hashes: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 16), np.uint8))

    @property
    def asked(self) -> str:
        """The flags of the command that ask for this."""
        row = "" if self.row is None else f" --row {self.row}"
        return f"--step {self.step}{row} --run {self.run}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that `trace --step --json` prints."""
        names = ("step", "row", "taken", "notes", "rows", "tokens", "documents", "parts")
        return {
            "run": str(self.run),
            **{name: getattr(self, name) for name in names},
            "sources": {name: asdict(counts) for name, counts in self.sources.items()},
            "shown": [document.to_dict() for document in self.shown],
        }


def trace_step(
    shard_set: ShardSet, run: TrainingRun, step: int, row: int | None = None, *, limit: int | None = 20
) -> Batch:
    """Find the documents of a step's global batch.

    Args:
        shard_set: the set that the run was trained on.
        run: the run.
        step: the step, from 1 as in metrics; up to the last of the run's recipe, taken or not.
        row: a row of the global batch, from 0; every row where None.
        limit: how many documents to describe; all where None. All are counted.

    Raises:
        ValueError: the set is not the run's, there is no such step or row, or the tokenizer is not a byte-level one.
        ShardSetError: the set's files are not what the manifest says.
        OSError: a file cannot be read.
    """
    notes = [*run.notes, *check_set(run, shard_set)]
    if not 1 <= step <= run.steps:
        raise ValueError(f"no step {step} in {run.folder}; its recipe has {run.steps}, counted from 1")
    if row is not None and not 0 <= row < run.global_batch:
        raise ValueError(f"no row {row} in a global batch of {run.global_batch}, counted from 0")
    if step > run.taken:
        notes.append(f"{run.folder} tells of {run.taken} steps taken; step {step} has, or would have, this batch")
    batch = Batch(run.folder, step, row, step <= run.taken, notes)
    vocabulary = shard_set.vocabulary
    order, hashes = window_order(run, shard_set), set[str]()
    shards = shard_set.splits["train"]
    batch.rows = run.global_batch if row is None else 1
    first_sample = row_window(step, row or 0, global_batch=run.global_batch)
    found = find_documents(shards, order, first_sample, batch.rows)
    each = ((number, window, place) for number, (window, places) in enumerate(found, row or 0) for place in places)
    for number, window, place in each:
        first = max(window.start - place.start, 0)
        last = min(window.stop - place.start, place.tokens)
        counts = batch.sources.setdefault(place.source, BatchSource())
        counts.tokens += last - first
        counts.documents += place.hash not in hashes
        hashes.add(place.hash)
        batch.parts += 1
        if limit is None or len(batch.shown) < limit:
            _, excerpt = read_excerpt(shards[window.shard], place, first, last, vocabulary=vocabulary)
            batch.shown.append(RowDocument(number, window, place, first, last - first, excerpt))
    batch.tokens = sum(counts.tokens for counts in batch.sources.values())
    batch.documents = len(hashes)
    batch.hashes = np.frombuffer(bytes.fromhex("".join(sorted(hashes))), np.uint8).reshape(-1, 16)
    return batch
