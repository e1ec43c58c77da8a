"""Return the audit for a report: the stored one if it belongs to this very set and the current rules, else a new one.

Only `audit.json` and `tokens.parquet` are read, so that a stored audit and a new one give the same report.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shards.audit.audit import AUDIT_VERSION, REPORT_FILE, audit
from shards.audit.tokens_table import TOKENS_FILE, read_values
from shards.format.reader import ShardSet
from shards.terminal.display import Table
from shards.terminal.reporter import Progress, no_progress


def rows_of(found: dict[str, Any], check: str) -> Table:
    """Return the findings of a check of an audited set, from its audit.json, worst first; empty without the check."""
    nothing: Table = []
    return next((entry["rows"] for entry in found["checks"] if entry["name"] == check), nothing)


def find_or_audit(
    shard_set: ShardSet, folder: Path, *, workers: int, progress: Progress = no_progress
) -> dict[str, Any]:
    """Return the audit of a set, as audit.json has it. Make it now unless `folder` has one of this very set.

    Raises:
        ShardSetError: the set is not whole.
        InputError: the tokenizer is not byte-level.
        OSError: a file cannot be read or written.
    """
    if not is_audited(shard_set, folder):
        audit(shard_set.store.folder or str(shard_set.store), out=folder, workers=workers, progress=progress)
    return json.loads((folder / REPORT_FILE).read_bytes())


def is_audited(shard_set: ShardSet, folder: Path) -> bool:
    """Return whether a folder holds a whole audit of this very set: audit.json is written after the counts."""
    expected = {"manifest_sha256": shard_set.manifest_sha256, "audit_version": AUDIT_VERSION}
    try:
        found: Any = json.loads((folder / REPORT_FILE).read_bytes())
        fits = isinstance(found, dict) and "checks" in found and expected.items() <= found.items()
        return fits and len(read_values(folder / TOKENS_FILE, "documents")) == shard_set.vocab_size
    except (ValueError, KeyError, OSError):  # Arrow's errors of a damaged file are one of these
        return False
