"""What a report takes from the audit: the findings, and how training uses the vocabulary.

The stored audit is used if it belongs to this very set and the current rules, else a new one is made.

Only `audit.json` and `tokens.parquet` are read, so that a stored audit and a new one give the same report.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from shards.audit.audit import AUDIT_VERSION, REPORT_FILE, TOKENS_FILE, audit, read_values
from shards.format.reader import ShardSet
from shards.terminal.display import Table
from shards.terminal.reporter import Progress, no_progress

SHOWN_ENTRIES = 12
MAX_POINTS = 160
"""Points of the curve by rank, spaced evenly on a logarithmic axis; more would not be visible."""


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


def describe_vocabulary(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return how training uses the vocabulary, from an audit: its audit.json, and its folder.

    Returns:
        ranks, counts: points of the curve of counts in falling order, rank from 1; ids never seen are left out.
        seen: ids that occur; `never_seen` counts those that do not, except special ids and single bytes.
        rare: ids that occur fewer than `rare_below` times; they are among `seen`.
        longest: the longest entries by bytes, without special ids: id, text, bytes and count of each. The text has lone
            surrogates for bytes that are not UTF-8.
        rarest: the rarest entries in the audit, rarest first.

    Raises:
        OSError: the audit's files cannot be read.
    """
    path = folder / TOKENS_FILE
    counts = np.from_dlpack(read_values(path, "count")).astype(np.int64)
    special = np.array(read_values(path, "special").to_pylist(), np.bool_)
    entries: list[bytes] = list(read_values(path, "bytes").to_pylist())
    lengths = np.array([len(entry) for entry in entries], np.int64)
    # The curve needs few points: ranks are spaced evenly on its logarithmic axis.
    falling = -np.sort(-counts[counts > 0])
    ranks = np.unique(np.geomspace(1, max(1, len(falling)), MAX_POINTS).round().astype(np.int64))[: len(falling)]
    below = int(found["rare_below"])
    by_length: list[int] = np.argsort(-np.where(special, -1, lengths), kind="stable")[:SHOWN_ENTRIES].tolist()
    rarest: list[int] = [row["id"] for row in rows_of(found, "rare")[:SHOWN_ENTRIES]]
    shown: dict[int, dict[str, Any]] = {
        token: {
            "id": token,
            "text": entries[token].decode("utf-8", "surrogateescape"),
            "bytes": len(entries[token]),
            "count": int(counts[token]),
        }
        for token in [*by_length, *rarest]
    }
    return {
        "ranks": ranks.tolist(),
        "counts": falling[ranks - 1].tolist(),
        "seen": len(falling),
        "never_seen": int(((counts == 0) & ~special & (lengths != 1)).sum()),
        "rare": int(((counts > 0) & (counts < below) & ~special).sum()),
        "rare_below": below,
        "longest": [shown[token] for token in by_length if lengths[token] and not special[token]],
        "rarest": [shown[token] for token in rarest],
    }
