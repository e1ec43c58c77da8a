"""The items of evaluation sets, ready for the search: the n-grams of each item.

A build searches for an item of at least `LONG_WORDS` words by its n-grams of `NGRAM_WORDS` words, and for a shorter
one, down to `LEAST_WORDS`, by all of its words as one n-gram. Even shorter items would be found everywhere: a build
counts them and does not search for them. Memory: about 40 bytes for each word of the items.
"""

import io
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from pipeline.clean.decontamination.normal_form import UNICODE_VERSION, find_hashed_words, hash_ngrams, normalise
from pipeline.clean.documents import DocumentStream
from pipeline.clean.steps import files_by_name, reading_keys
from pipeline.engine.checksums import write_checksummed
from pipeline.engine.receipts import Result, TaskOutput
from pipeline.engine.tasks import InDigest, Payload, Report
from pipeline.recipe.schema import EvaluationRecipe, Recipe
from pipeline.recipe.sources import FilesSource
from pipeline.sources.base import ALLOW, SourceError, Span
from pipeline.sources.files import list_files, list_spans
from shards.eval_tasks.known import KNOWN_TASKS
from shards.eval_tasks.read import read_items as read_task_items
from shards.format.arrays import Int64s, Integers, Rows, UInt32s, UInt64s
from shards.stores.open import open_store

NGRAM_WORDS = 5
"""Words of an n-gram: one changed word spoils five of them, and the words on either side of it are still found."""
LONG_WORDS = 8
"""Words of the shortest item that is searched for by several n-grams."""
LEAST_WORDS = 3
"""Words of the shortest item that a build searches for."""
ITEMS_FILE = "items.npz"

ITEM_DTYPE = np.dtype(
    [
        ("evaluation", "<u4"),  # index of the evaluation set in the recipe
        ("span", "<u4"),  # index of the item's span in the set
        ("row", "<u4"),  # row in the span
        ("words", "<u4"),
        ("size", "<u4"),  # words of its n-grams; 0: too short to search for
    ]
)


def _reading_keys(evaluations: tuple[EvaluationRecipe, ...]) -> dict[str, Any]:
    # Items name their set by its number.
    keys = {
        one.name: {"task": one.task, "revision": KNOWN_TASKS[one.task].revision}
        if one.task
        else reading_keys(source_of(one))
        for one in evaluations
    }
    return {"order": list(keys), "evaluations": keys}


@dataclass(frozen=True, slots=True)
class EvaluationsTask(Payload):
    """The input of the task that reads the evaluation sets; plain data."""

    CODE: ClassVar = (6, UNICODE_VERSION)
    """Increase it, too, when documents would have other hits."""
    LIBRARIES: ClassVar = ("pyarrow",)

    evaluations: Annotated[tuple[EvaluationRecipe, ...], InDigest(_reading_keys, "")]
    spans: Annotated[dict[str, tuple[Span, ...]], InDigest(files_by_name, "evaluations")]
    """By the name of the evaluation set."""


@dataclass(frozen=True)
class Items:
    """The items of all evaluation sets, and their n-grams."""

    rows: Rows
    """`ITEM_DTYPE (items,)`."""
    ngrams: UInt64s
    """Hashes of the distinct n-grams, in order, `(ngrams,)`."""
    beginnings: UInt64s
    """Hashes of the distinct first `LEAST_WORDS` words of short items, `(beginnings,)`."""
    of_items: Int64s
    """The n-grams of each item in the order of its text, as places in `ngrams`, item by item, `(pairs,)`."""
    offsets: Int64s
    """The n-grams of item i are `of_items[offsets[i]:offsets[i + 1]]`, `(items + 1,)`."""


def source_of(evaluation: EvaluationRecipe) -> FilesSource:
    """Return an evaluation set as a source, whose documents are the items."""
    given = evaluation.model_dump(include={"name", "paths", "format", "text", "separator", "delimiter", "quote"})
    return FilesSource(weight=1.0, **given)


@contextmanager
def _own_words(evaluation: EvaluationRecipe) -> Generator[None]:
    """Turn the error of the source that items are read from into that of an evaluation set, which has fewer keys."""
    try:
        yield
    except SourceError as error:
        text = str(error).replace(ALLOW, "").removeprefix(f"source {evaluation.name!r}: ")
        text = re.sub(r"(?m)^source ", "evaluation set ", f"source {evaluation.name!r}: {text}")
        raise SourceError(text) from error


def make_items_task(recipe: Recipe) -> EvaluationsTask:
    """Make the task that reads items: list the files whose rows are the items of evaluation sets.

    Raises:
        SourceError: a file cannot be read, or has no such column.
    """
    spans: dict[str, tuple[Span, ...]] = {}
    for one in recipe.evaluations:
        with _own_words(one):
            source = None if one.task else source_of(one)
            listed = list_spans(source, list_files(source, with_splits=True)) if source else {}
            spans[one.name] = tuple(chain.from_iterable(listed.values()))
    return EvaluationsTask(tuple(recipe.evaluations), spans)


@dataclass(frozen=True, slots=True)
class ReadItems:
    """The items of one evaluation set, as they were read."""

    name: str
    items: int
    """All of them."""
    left_out: int
    """Those that are not searched for: too short, or without text."""
    spans: list[str]
    """The labels of its spans."""
    hashes: list[str] = field(default_factory=list[str])
    """Content hashes of the items of an eval task; empty for files."""
    sha256: str = ""
    """That of these `TaskItems`; empty for files."""


@dataclass(slots=True, kw_only=True)
class ItemsResult(Result):
    """The result of the task that reads items."""

    evaluations: list[ReadItems]


def read_items(folder: Path, task: EvaluationsTask, report: Report) -> ItemsResult:
    """Read the items of all evaluation sets into `folder`.

    Args:
        folder: an empty folder.
        task: the evaluation sets.
        report: called with the bytes of text done so far.

    Raises:
        SourceError: a file cannot be read as the recipe says, or a set holds no item to search for.
    """
    rows: list[Rows] = []
    ngrams: list[UInt64s] = []
    counts: list[ReadItems] = []
    text_bytes = 0
    for number, evaluation in enumerate(task.evaluations):
        spans = task.spans[evaluation.name]
        own: list[Rows] = []
        known: dict[str, Any] = {}
        if evaluation.task:
            # The items of an eval task are those that a training run scores.
            read = read_task_items(KNOWN_TASKS[evaluation.task])
            texts = [memoryview(item.text.encode()) for item in read.items]
            own.append(_describe(number, 0, np.arange(len(texts)), texts, ngrams))
            dropped, labels = 0, [read.place]
            known = {"hashes": read.hashes, "sha256": read.sha256}
        else:
            # Another evaluation set is read as a source is; its documents are the items.
            stream = DocumentStream(source_of(evaluation), spans)
            with _own_words(evaluation):
                for places, documents in stream:
                    own.append(_describe(number, places, documents.rows, documents, ngrams))
                    text_bytes += documents.num_bytes
                    report(text_bytes, 0)
            dropped, labels = stream.tally.dropped.total(), [span.label("file") for span in spans]
        items = np.concatenate([*own, np.zeros(0, ITEM_DTYPE)])
        short = int((items["size"] == 0).sum())
        if short == len(items):
            why = f"all {short:,} are shorter than {LEAST_WORDS} words" if short else "its files hold none"
            raise SourceError(
                f"evaluation set {evaluation.name!r}: no item can be searched for: {why}. Correct `paths` or `text`."
            )
        counts.append(ReadItems(evaluation.name, len(items) + dropped, short + dropped, labels, **known))
        rows.append(items)
    items = collect_items(np.concatenate(rows), ngrams)
    buffer = io.BytesIO()
    np.savez(buffer, **asdict(items))
    files = {ITEMS_FILE: write_checksummed(folder / ITEMS_FILE, buffer.getvalue())}
    return ItemsResult(evaluations=counts, files=files)


def _describe(
    number: int,
    places: UInt32s | int,
    rows: Integers,
    texts: Iterable[memoryview],
    ngrams: list[UInt64s],
) -> Rows:
    """Return the rows of an evaluation set's items, `ITEM_DTYPE (items,)`; their n-grams go to the end of a list."""
    found = np.zeros(len(rows), ITEM_DTYPE)
    found["evaluation"], found["span"], found["row"] = number, places, rows
    for place, text in enumerate(texts):
        found["words"][place], found["size"][place], own = find_item_ngrams(text)
        ngrams.append(own)
    return found


@lru_cache(maxsize=1)
def load_items(task: str) -> Items:
    """Return the items of evaluation sets that a task has read. A process reads them once.

    Args:
        task: the address of the task's folder.

    Raises:
        WorkFileDamagedError: the file is not as it was written.
    """
    data = TaskOutput(open_store(task)).read(ITEMS_FILE)
    with np.load(io.BytesIO(data)) as arrays:
        return Items(**{name: arrays[name] for name in arrays})


def find_item_ngrams(text: memoryview) -> tuple[int, int, UInt64s]:
    """Return what is searched for an item of an evaluation set: its words, the size of its n-grams, and these.

    The n-grams are in the order of the text, uint64 `(ngrams, 2)`: each with its beginning, which is 0 for those of
    long items. The size of an item that is too short is 0.
    """
    words, _, letters = find_hashed_words(normalise(bytes(text))[0])
    # Two words are found everywhere. Those of scripts without spaces overlap: counted are whole ones, in sixtieths.
    if len(words) < LEAST_WORDS or (60 // letters[:-1].astype(np.int64)).sum() < 60 * (LEAST_WORDS - 1):
        return len(words), 0, np.zeros((0, 2), np.uint64)
    long = len(words) >= LONG_WORDS
    # A long item by its n-grams, a short one by all of its words at once.
    size = NGRAM_WORDS if long else len(words)
    hashes = hash_ngrams(words, size)
    beginnings = np.zeros(len(hashes), np.uint64) if long else hash_ngrams(words, LEAST_WORDS)[:1]
    return len(words), size, np.stack([hashes, beginnings], axis=1)


def collect_items(rows: Rows, ngrams: list[UInt64s]) -> Items:
    """Return items from their rows, and from the n-grams that `find_item_ngrams` gave for each."""
    # Items share n-grams: each is kept once, with the items that it is of.
    pairs = np.concatenate(ngrams)
    hashes, of_items = np.unique(pairs[:, 0], return_inverse=True)
    beginnings = np.unique(pairs[pairs[:, 1] > 0, 1])
    return Items(rows, hashes, beginnings, of_items, np.cumsum([0, *map(len, ngrams)]))
