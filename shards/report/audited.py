"""Return the audit for a report: the stored one if it belongs to this very set and the current rules, else a new one.

Only `audit.json` and `tokens.parquet` are read, so that a stored audit and a new one give the same report.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from shards.audit.audit import AUDIT_VERSION, REPORT_FILE, audit
from shards.audit.tokens_table import TOKENS_FILE, read_column
from shards.format.reader import ShardSet
from shards.terminal.reporter import Progress, no_progress


@dataclass(frozen=True)
class Audited:
    """An audit as it was written: `found` is the content of audit.json, `folder` has that file and tokens.parquet."""

    folder: Path
    found: dict[str, Any]

    def rows(self, check: str) -> list[dict[str, Any]]:
        """Return the findings of a check, worst first; empty if the audit has no such check."""
        return rows_of(self.found, check)


def rows_of(found: dict[str, Any], check: str) -> list[dict[str, Any]]:
    """Return the findings of a check of an audited set, from its audit.json, worst first; empty without the check."""
    nothing: list[dict[str, Any]] = []
    return next((entry["rows"] for entry in found["checks"] if entry["name"] == check), nothing)


def find_or_audit(shard_set: ShardSet, folder: Path, *, workers: int, progress: Progress = no_progress) -> Audited:
    """Return the audit of a set that is reported. Make it now unless `folder` has one of this set.

    Raises:
        ShardSetError: the set is not whole.
        ValueError: the tokenizer is not byte-level.
        OSError: a file cannot be read or written.
    """
    if not is_audited(shard_set, folder):
        audit(shard_set.store.folder or str(shard_set.store), out=folder, workers=workers, progress=progress)
    return Audited(folder, json.loads((folder / REPORT_FILE).read_bytes()))


def is_audited(shard_set: ShardSet, folder: Path) -> bool:
    """Return whether a folder holds a whole audit of this very set."""
    if not (folder / TOKENS_FILE).is_file() or not (folder / REPORT_FILE).is_file():
        return False
    try:
        found: Any = json.loads((folder / REPORT_FILE).read_bytes())
    except ValueError:
        return False
    if not isinstance(found, dict) or "checks" not in found:
        return False
    head = cast("dict[str, Any]", found)
    if (head.get("manifest_sha256"), head.get("audit_version")) != (shard_set.manifest_sha256, AUDIT_VERSION):
        return False
    return _counts_fit(shard_set, folder / TOKENS_FILE)


def _counts_fit(shard_set: ShardSet, tokens: Path) -> bool:
    """Return whether the counts belong to this set: the two files are not written atomically together."""
    import pyarrow as pa

    train = shard_set.manifest.splits.get("train")
    try:
        for source in shard_set.manifest.sources:
            held = train.sources.get(source.name) if train else None
            counted = read_column(tokens, f"count_{source.name}")
            if len(counted) != shard_set.vocab_size or int(counted.sum()) != (held.tokens if held else 0):
                return False
    except (pa.ArrowException, KeyError):
        return False
    return True
