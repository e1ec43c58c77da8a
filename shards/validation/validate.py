"""Validate a shard set and name every problem.

Levels: `quick` checks everything but the tokens (milliseconds per shard); `full` reads every token and document row, at
almost the speed of decompression. FORMAT.md lists what each level checks, and what no level checks.

Wrong content is reported, never raised; only a folder or store that cannot be listed raises. Memory does not grow with
the set: a frame of 1 MiB for each thread, 8 bytes per document of the shards being read, and the duplicate check's
partitions; for a set in a store also one request (8 MiB) and one document table for each thread.

`check_in_full` defines the full level; its caller runs the checks of shards and partitions. `validate` runs them in
threads of this process; a build runs them as tasks on its engine (`pipeline.validation_tasks`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shards.errors import Problem
from shards.format.reader import Shard, Shards, ShardSet
from shards.stores.open import AnyPath, open_store
from shards.stores.store import Store
from shards.terminal.reporter import Progress, count_up, no_progress
from shards.terminal.workers import map_in_threads
from shards.validation.duplicates import check_duplicates
from shards.validation.files import Structure, check_files, check_set_files
from shards.validation.mix import check_mix_shares
from shards.validation.shard_contents import ShardFindings, find_shard_problems, shard_rules

Level = Literal["quick", "full"]


CheckShards = Callable[[ShardSet, Structure], Sequence[ShardFindings]]
"""A function of a set and its files, which returns what `find_shard_problems` finds in each shard, in order."""

Compare = Callable[[Sequence[Shard], Mapping[str, int], Sequence[int | None]], list[Problem]]
"""A function with the arguments and the result of `check_duplicates`."""


@dataclass
class ValidationResult:
    """The result of a validation.

    `tokens` and `documents` count what was read and checked; at the quick level they are the manifest's totals.
    """

    path: Path | str
    level: Level
    problems: list[Problem] = field(default_factory=list[Problem])
    shards: int = 0
    tokens: int = 0
    documents: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Return whether no problem was found."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that `validate --json` prints."""
        return {
            "path": str(self.path),
            "level": self.level,
            "ok": self.ok,
            "shards": self.shards,
            "tokens": self.tokens,
            "documents": self.documents,
            "seconds": round(self.seconds, 3),
            "problems": [problem.to_dict() for problem in self.problems],
        }


def validate(
    path: AnyPath,
    *,
    level: Level = "quick",
    threads: int = 1,
    progress: Progress = no_progress,
) -> ValidationResult:
    """Check a shard set and return every problem found.

    Args:
        path: the set's folder, or the address of its store.
        level: `quick` or `full`.
        threads: shards are read by this many threads; the report does not depend on it.
        progress: called as tokens are checked.

    Raises:
        OSError: the folder is absent or cannot be listed.
        InputError: the store cannot be read, or the path is not the address of one.
    """
    began = time.perf_counter()
    store = open_store(path)
    if level == "full":
        report, structure = check_in_full(store, _threaded(threads, progress), check_duplicates)
    else:
        # The quick level reads no contents: its totals are those of the manifest.
        structure = check_files(store)
        report = ValidationResult(store.folder or str(store), level, structure.problems)
        shards = structure.shard_set.shards if structure.shard_set is not None else Shards()
        report.shards = len(shards)
        report.tokens = shards.num_tokens
        report.documents = shards.num_documents
    report.seconds = time.perf_counter() - began
    return report


def check_in_full(store: Store, check_shards: CheckShards, compare: Compare) -> tuple[ValidationResult, Structure]:
    """Validate a set at the full level.

    Args:
        store: the set's place.
        check_shards: runs the checks of shards, anywhere.
        compare: runs the comparison of documents over the whole set, anywhere.

    Returns:
        The result, without the time it took; and the set's files, of which those in `sound` may be opened.

    Raises:
        OSError: the folder is absent or cannot be listed.
        InputError: the store cannot be read.
        Whatever `check_shards` or `compare` raises.
    """
    structure = check_set_files(store)
    report = ValidationResult(store.folder or str(store), "full", list(structure.problems))
    shard_set = structure.shard_set
    if shard_set is None:
        return report, structure
    shards = shard_set.shards
    findings = check_shards(shard_set, structure)
    # What was found in each shard: first of all files, then of all contents.
    structure.sound = {name for found in findings for name in found.sound}
    report.shards = len(shards)
    report.tokens = sum(found.tokens for found in findings)
    report.documents = sum(found.documents for found in findings)
    report.problems += [problem for found in findings for problem in found.file_problems]
    report.problems += [problem for found in findings for problem in found.problems]
    # The mix. If a table is missing, the longest document is unknown, and every share would look wrong.
    trusted = [(shard, found) for shard, found in zip(shards, findings, strict=True) if found.table_sound]
    if len(trusted) == len(shards):
        longest: Counter[str] = Counter()
        for found in findings:
            longest |= Counter(found.longest)
        report.problems += check_mix_shares(shard_set.manifest, longest)
    # Last the documents of the whole set, of the tables that can be trusted.
    report.problems += compare(
        [shard for shard, _ in trusted], shard_set.manifest.epochs, [found.coverage for _, found in trusted]
    )
    return report, structure


def _threaded(threads: int, progress: Progress) -> CheckShards:
    """Return what checks shards in threads of this process."""

    def check_shards(shard_set: ShardSet, structure: Structure) -> list[ShardFindings]:
        rules, advance = shard_rules(shard_set), count_up(progress, shard_set.shards.num_tokens)

        def check(shard: Shard) -> ShardFindings:
            return find_shard_problems(shard, rules, structure.listing, advance)

        return map_in_threads(check, shard_set.shards, threads)

    return check_shards
