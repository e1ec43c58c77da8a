"""Validate: check neighbouring shards as they were published, or one range of all hashes; no file is written.

The checks are those of `shards.validation`, which `tokenmill validate` runs in threads. If a request costs more than
its bytes, the small files of a shard are fetched whole, all at once, while the shard before it is checked. Memory: one
shard's document table, 8 bytes for each of its documents, a frame, and one request, or two shards' files that have been
fetched; or the documents of a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipeline.engine.receipts import Result
from pipeline.engine.tasks import Report
from pipeline.engine.timer import Timer
from shards.format.equal_hashes import HashRange
from shards.format.manifest import ShardEntry
from shards.format.reader import Shard
from shards.stores.fetched_store import FetchedStore
from shards.stores.open import open_store
from shards.validation.duplicates import EqualDocuments, compare_range
from shards.validation.files import ListedEntry, ShardRules
from shards.validation.shard_contents import ShardFindings, find_shard_problems

TASK_BYTES = 32 << 20
"""Tokens of a task's shards, about: 40 ms of work, ten times what the task itself costs."""
MOST_SHARDS = 64
"""Shards of a task: of small ones, 0.1 s of work."""
FETCHED_AT_ONCE = 3
"""Requests of one task at once: a shard's files."""
MOST_TASKS = 2048
"""More shards than these tasks hold make larger tasks: the driver reads a receipt for each."""


@dataclass(frozen=True, slots=True)
class ValidateTask:
    """The input of a task that checks shards; plain data."""

    address: str
    """Of the set."""
    shards: tuple[ShardEntry, ...]
    listing: dict[str, ListedEntry]
    """The set's listing, as far as it names files of these shards."""
    rules: ShardRules


@dataclass(frozen=True, slots=True)
class CompareTask:
    """The input of a task that compares the documents of one range of hashes; plain data."""

    address: str
    """Of the set."""
    shards: tuple[ShardEntry, ...]
    """Those that may have documents in the range."""
    dtype: str
    epochs: Mapping[str, int]
    hashes: HashRange


def group_validation_shards(shards: Sequence[Shard]) -> list[tuple[ShardEntry, ...]]:
    """Divide the shards of a set among validation tasks, neighbours together."""
    if not shards:
        return []
    shard_bytes = sum(shard.num_tokens * shard.dtype.itemsize for shard in shards) // len(shards)
    most = shards_a_validation_task(len(shards), shard_bytes)
    entries = [shard.entry for shard in shards]
    return [tuple(entries[first : first + most]) for first in range(0, len(entries), most)]


def shards_a_validation_task(shards: int, shard_bytes: int) -> int:
    """Return how many shards one validation task checks, from the set's number of shards and the bytes of each."""
    return min(MOST_SHARDS, max(1, TASK_BYTES // max(1, shard_bytes), -(-shards // MOST_TASKS)))


@dataclass(slots=True, kw_only=True)
class ValidateResult(Result):
    """The result of a task that checks shards."""

    findings: list[ShardFindings]
    """Those of each shard, in order."""


@dataclass(slots=True, kw_only=True)
class CompareResult(Result):
    """The result of a task that compares documents."""

    faults: EqualDocuments


def validate_shards(folder: Path, task: ValidateTask, report: Report) -> ValidateResult:
    """Run a validation task: check its shards, one after the other."""
    timer, done = Timer(), 0
    findings: list[ShardFindings] = []
    token_bytes = np.dtype(task.rules.dtype).itemsize

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        report(done * token_bytes, done)

    # One shard after the other; `report` tells the driver how far the task is.
    shards = _open_shards(task.address, task.shards, task.rules.dtype)
    for shard in _fetch_ahead(shards, task.listing):
        findings.append(find_shard_problems(shard, task.rules, task.listing, advance))
    timer.lap("check_s")
    return ValidateResult(findings=findings, seconds=timer.seconds, core_seconds=timer.core_seconds)


def compare_documents(folder: Path, task: CompareTask, report: Report) -> CompareResult:
    """Run a validation task: compare the documents of one range of hashes, to find equal ones."""
    timer = Timer()
    shards = _open_shards(task.address, task.shards, task.dtype)
    faults = compare_range(shards, task.epochs, task.hashes)
    timer.lap("compare_s")
    return CompareResult(faults=faults, seconds=timer.seconds, core_seconds=timer.core_seconds)


def _open_shards(address: str, entries: Sequence[ShardEntry], dtype: str) -> list[Shard]:
    store = open_store(address)
    numbers = np.dtype("<u2") if dtype == "uint16" else np.dtype("<u4")
    return [Shard(store, entry, numbers) for entry in entries]


def _fetch_ahead(shards: Sequence[Shard], listing: Mapping[str, ListedEntry]) -> Iterator[Shard]:
    """Yield shards; from a store with costly requests, each shard with the files that one request reads."""
    if not shards or not shards[0].store.request_bytes:
        yield from shards
        return
    # The small files of the next shard are on their way while this one is checked.
    most = shards[0].store.request_bytes
    with ThreadPoolExecutor(FETCHED_AT_ONCE) as pool:

        def fetch(shard: Shard) -> dict[str, Future[bytes]]:
            small = [
                file.path
                for file in shard.entry.files.entries
                if file.bytes <= most and listing.get(file.path) == ListedEntry(file.bytes)
            ]
            return {name: pool.submit(shard.store.read, name) for name in small}

        coming = fetch(shards[0])
        for number, shard in enumerate(shards):
            content: dict[str, bytes] = {}
            for name, request in coming.items():
                with suppress(OSError):  # it is read again where it is checked, and what fails then is a problem
                    content[name] = request.result()
            coming = fetch(shards[number + 1]) if number + 1 < len(shards) else {}
            yield replace(shard, store=FetchedStore(shard.store, content))
