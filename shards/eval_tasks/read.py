"""Read the items of eval tasks: from the Hub at a pinned commit, or from parquet and JSON lines of the user.

A file of the Hub is fetched once and kept in the cache that sets share, under its commit. An eval task has at most some
ten thousand items, which are held in memory. JSON lines are read by Python: Arrow would take some texts for dates.
"""

# pyright: reportUnknownMemberType=false
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from shards.errors import InputError, lacks_memory, unread
from shards.eval_tasks.known import EvalTask, Item, Row, shorten
from shards.format.content_hash import hash_document
from shards.stores.cache import Cache
from shards.stores.files import read_file
from shards.stores.hub_store import HubAddress, open_hub
from shards.terminal.display import printable

MAX_FILE_BYTES = 1 << 28
"""A larger file of items is refused before it is read."""


@dataclass(frozen=True)
class TaskItems:
    """The items of one split of an eval task."""

    items: list[Item]
    place: str
    """Where they were read: the address of the split's file at its commit, or the files."""

    @cached_property
    def hashes(self) -> list[str]:
        """The content hash of each item's text, 32 hexadecimal digits."""
        return [hash_document(item.text.encode()).hex() for item in self.items]

    @property
    def sha256(self) -> str:
        """The SHA-256 of the items' content hashes: it tells whether others are the same, in the same order."""
        return hashlib.sha256("".join(self.hashes).encode()).hexdigest()


def read_items(task: EvalTask, file: str = "", *, files: Sequence[Path] = ()) -> TaskItems:
    """Read items of an eval task, in the order of the data set.

    Args:
        task: the eval task.
        file: a file of its data set on the Hub; by default the one whose items are scored.
        files: parquet files or JSON lines to read instead.

    Raises:
        InputError: a file cannot be read, a row is none of this task, or there is no item.
        StoreError: the Hub does not answer.
    """
    items: list[Item] = []
    if files:
        for path in files:
            try:
                content = read_file(path, MAX_FILE_BYTES)
            except (OSError, ValueError) as error:  # of a path that no file can have
                fault = unread(error, "`files` names local files, one by one: correct it.")
                raise InputError(f"{printable(str(path))}: {fault}") from error
            items += _ask_all(task, str(path), path.name, content)
        place = ", ".join(map(str, files))
    else:
        folder, _, name = (file or task.file).rpartition("/")
        address = HubAddress(task.repo, task.revision, folder)
        place, cache = f"{address}/{name}", Cache()  # of this machine
        content = cache.get(place)
        if content is None:
            try:
                content = open_hub(address).read(name)
            except FileNotFoundError as error:
                raise InputError(f"{place}: not there. Give `files` with the items instead.") from error
            cache.put(place, content)
        items = _ask_all(task, place, name, content)
    if not items:
        raise InputError(f"eval task {task.name!r}: {place} holds no item. Name a file with items.")
    return TaskItems(items, place)


def _ask_all(task: EvalTask, place: str, name: str, content: bytes) -> list[Item]:
    """Return the items of the rows of a file of an eval task."""
    rows = _read_parquet(place, content) if name.endswith(".parquet") else _read_lines(place, content)
    items: list[Item] = []
    for where, row in rows:
        try:
            items.append(task.ask(row))
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            fault = f"a column has another type than expected: {shorten(row)}"
            if isinstance(error, KeyError):
                fault = f"no column {error}; found {shorten(list(row))}"
            elif isinstance(error, ValueError):
                fault = str(error)
            raise InputError(
                f"{where}: {fault}. Expected an item of eval task {task.name!r}: correct the row, or name another file."
            ) from error
    return items


def _read_parquet(place: str, content: bytes) -> Iterator[tuple[str, Row]]:
    """Yield each row of an eval task's parquet with its place in messages, as `_read_lines` does."""
    try:
        rows: list[Row] = pq.read_table(io.BytesIO(content)).to_pylist()
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if lacks_memory(error):
            raise
        fault = shorten(" ".join(str(error).split()))
        raise InputError(
            f"{place}: not a parquet file, or damaged: {fault}. Expected parquet, or JSON lines: write it again."
        ) from error
    for number, row in enumerate(rows):
        yield f"{place}: row {number}, counted from 0", row


def _read_lines(place: str, content: bytes) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{place}: line {number}"
        try:
            row: Any = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:  # of UTF-8 and JSON, too; lists may be too deep
            row = error
        if not isinstance(row, dict):
            found = f"not JSON ({row})" if isinstance(row, Exception) else f"a {type(row).__name__}"
            raise InputError(
                f"{where}: {found:.100}: {shorten(line[:200])}. Expected an object with the columns of an item on "
                "each line: correct the line."
            )
        yield where, cast("Row", row)
