"""Validate a shard set and name every problem.

Levels: `quick` checks everything but the tokens (milliseconds a shard); `full` reads every token and document row, at
a speed near that of decompression; `against_sources` reads sampled documents again from their sources. FORMAT.md
lists what each level checks, and what no level checks.

Wrong content is reported, never raised; only a folder or store that cannot be listed raises. Memory does not grow with
the set: a frame of 1 MiB for each thread, 8 bytes a document of the shards being read, and the duplicate check's
partitions; for a set in a store also one request (8 MiB) and one document table for each thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shards.errors import Problem
from shards.format.reader import Shard, ShardSet
from shards.format.workers import map_in_threads
from shards.stores.open import open_store
from shards.validation.duplicates import check_duplicates
from shards.validation.files import Structure, check_structure
from shards.validation.mix import check_shares
from shards.validation.shard import ShardContents, check_contents
from shards.validation.sources import compare_with_sources

Level = Literal["quick", "full"]

Progress = Callable[[int, int], None]
"""A function of the tokens checked so far and the tokens in all, called by one thread at a time."""


@dataclass
class ValidationResult:
    """The result of a validation.

    `tokens` and `documents` count what was read and checked; at the quick level they are the manifest's totals.
    `not_run` lists requested checks that could not run, with the reason. A set is whole only if this list is empty too.
    """

    path: Path | str
    level: Level
    problems: list[Problem] = field(default_factory=list[Problem])
    not_run: list[str] = field(default_factory=list[str])
    shards: int = 0
    tokens: int = 0
    documents: int = 0
    compared_documents: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Return whether every check ran and found no problem."""
        return not self.problems and not self.not_run

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that `validate --json` prints."""
        return {
            "path": str(self.path),
            "level": self.level,
            "ok": self.ok,
            "shards": self.shards,
            "tokens": self.tokens,
            "documents": self.documents,
            "compared_documents": self.compared_documents,
            "seconds": round(self.seconds, 3),
            "problems": [problem.to_dict() for problem in self.problems],
            "not_run": self.not_run,
        }


def validate(
    path: str | os.PathLike[str],
    *,
    level: Level = "quick",
    against_sources: int = 0,
    threads: int = 1,
    progress: Progress | None = None,
) -> ValidationResult:
    """Check a shard set and return every problem found.

    Args:
        path: the set's folder, or the address of its store.
        level: `quick` or `full`.
        against_sources: how many sampled documents to read again from their sources and compare byte for byte.
        threads: shards are read by this many threads; the report does not depend on it.
        progress: called as tokens are checked.

    Raises:
        OSError: the folder is absent or cannot be listed.
        InputError: the store cannot be read, or the path is not the address of one.
    """
    began = time.perf_counter()
    store = open_store(path)
    structure = check_structure(store)
    report = ValidationResult(store.folder or str(store), level, problems=list(structure.problems))
    shard_set = structure.shard_set
    if shard_set is not None:
        report.shards = len(shard_set.shards)
        if level == "full":
            _check_full(report, structure, shard_set, threads, progress)
        else:
            report.tokens = sum(shard.num_tokens for shard in shard_set.shards)
            report.documents = sum(shard.num_documents for shard in shard_set.shards)
        if against_sources:
            _check_against_sources(report, structure, shard_set, against_sources)
    elif against_sources:
        report.not_run.append("against sources: the manifest cannot be used")
    report.seconds = time.perf_counter() - began
    return report


def _check_full(
    report: ValidationResult, structure: Structure, shard_set: ShardSet, threads: int, progress: Progress | None
) -> None:
    manifest = shard_set.manifest
    total = sum(shard.num_tokens for shard in shard_set.shards)
    done, lock = 0, threading.Lock()

    def advance(tokens: int) -> None:
        nonlocal done
        with lock:
            done += tokens
            if progress is not None:
                progress(done, total)

    def check(shard: Shard) -> ShardContents:
        return check_contents(
            shard, structure.sound, vocab_size=shard_set.vocab_size, eos_id=shard_set.eos_id, advance=advance
        )

    contents = map_in_threads(check, shard_set.shards, threads)
    longest: Counter[str] = Counter()
    for found in contents:
        report.problems += found.problems
        report.tokens += found.tokens
        report.documents += found.documents
        for source, tokens in found.longest.items():
            longest[source] = max(longest[source], tokens)
    trusted = [shard for shard, found in zip(shard_set.shards, contents, strict=True) if found.table_sound]
    if len(trusted) == len(contents):
        # If a table is missing, the longest document is unknown, and every share would look wrong.
        report.problems += check_shares(manifest, longest)
    report.problems += check_duplicates(trusted, {source.name: source.epochs for source in manifest.sources})


def _check_against_sources(report: ValidationResult, structure: Structure, shard_set: ShardSet, count: int) -> None:
    whole: list[Shard] = []
    for shard in shard_set.shards:
        files = shard.entry.files
        if files.tokens.path in structure.sound and files.documents.path in structure.sound:
            whole.append(shard)
    found = compare_with_sources(shard_set, whole, count)
    report.compared_documents = found.compared
    report.problems += [problem for problem in found.problems if problem not in report.problems]
    report.not_run += found.not_run
