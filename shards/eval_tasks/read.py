"""Read the items of eval tasks: from the Hub at a pinned commit, or from parquet and JSON lines of the user.

A file of the Hub is fetched once and kept in the cache that sets share, under its commit. An eval task has at most some
ten thousand items, which are held in memory. JSON lines are read by Python: Arrow would take some texts for dates.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from shards.errors import InputError
from shards.eval_tasks.known import EvalTask, Split
from shards.eval_tasks.prompts import Item, Row
from shards.format.content_hash import hash_document
from shards.stores.address import HubAddress
from shards.stores.cache import Cache


@dataclass(frozen=True, slots=True)
class TaskItems:
    """The items of one split of an eval task."""

    items: list[Item]
    place: str
    """Where they were read: the address of the split's file at its commit, or the files."""

    def hashes(self) -> list[str]:
        """Return the content hash of each item's text, 32 hexadecimal digits: it tells which items a set was built
        without."""
        return [hash_document(item.text.encode()).hex() for item in self.items]


def read_items(
    task: EvalTask, split: Split | None = None, *, files: Sequence[Path] = (), cache: Cache | None = None
) -> TaskItems:
    """Read the items of a split, in the order of the data set.

    Args:
        task: the eval task.
        split: the split; the one that is scored when None. Not with `files`.
        files: parquet files or JSON lines to read instead of the Hub's.
        cache: keeps what the Hub gave; the default cache of this machine when None.

    Raises:
        InputError: a file cannot be read, a row is none of this task, or there is no item.
        StoreError: the Hub does not answer.
    """
    items: list[Item] = []
    if files:
        for path in files:
            items += _ask_all(task, str(path), path.name, _read_file(path))
        place = ", ".join(map(str, files))
    else:
        name = task.files.get(split := split or task.split)
        if name is None:
            splits = ", ".join(task.files) or "none"
            raise InputError(f"eval task {task.name!r}: no split {split!r}; expected one of {splits}.")
        folder, _, name = name.rpartition("/")
        address = HubAddress(task.repo, task.revision, folder)
        place = f"{address}/{name}"
        items = _ask_all(task, place, name, _fetch(address, name, cache))
    if not items:
        raise InputError(f"eval task {task.name!r}: {place} holds no item. Name a file with items.")
    return TaskItems(items, place)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}. Correct `files`.") from error


def _fetch(address: HubAddress, name: str, cache: Cache | None) -> bytes:
    from shards.stores.hub_store import open_hub

    cache = cache or Cache()
    key = f"{address}/{name}"
    content = cache.get(key)
    if content is None:
        try:
            content = open_hub(address).read(name)
        except FileNotFoundError as error:
            raise InputError(f"{key}: not there. Give `files` with the items instead.") from error
        cache.put(key, content)
    return content


def _ask_all(task: EvalTask, place: str, name: str, content: bytes) -> list[Item]:
    """Return the items of a file's rows."""
    rows = _read_parquet(place, content) if name.endswith(".parquet") else _read_lines(place, content)
    items: list[Item] = []
    for number, row in enumerate(rows):
        try:
            item = task.ask(row)
            texts: list[Any] = [*item.contexts, *item.choices]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("a question or a choice is not text")
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{place}: row {number}: {error}. Expected an item of eval task {task.name!r}.") from error
        except KeyError as error:
            found = f"no column {error}; found {', '.join(row)}"
            raise InputError(f"{place}: row {number}: {found}. Is it an item of eval task {task.name!r}?") from error
        items.append(item)
    return items


def _read_parquet(place: str, content: bytes) -> list[Row]:
    try:
        return pq.read_table(io.BytesIO(content)).to_pylist()
    except pa.ArrowException as error:
        raise InputError(f"{place}: not a parquet file: {error}. Expected parquet, or JSON lines.") from error


def _read_lines(place: str, content: bytes) -> Iterator[Row]:
    for number, line in enumerate(content.splitlines()):
        try:
            row: Any = json.loads(line) if line.strip() else {}
        except ValueError as error:
            raise InputError(f"{place}: line {number + 1}: not valid JSON: {error}. Expected JSON lines.") from error
        if not isinstance(row, dict):
            raise InputError(f"{place}: line {number + 1}: expected an object, found {type(row).__name__}.")
        if row:
            yield cast("Row", row)
