"""Documents and tokens that each step of the mix drops from each source; a document counts for its first reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.encode.run import Run
from pipeline.mix.cleaning import Cleaning
from pipeline.mix.index import Index

CODE_VERSION = 1
"""Increase when the same index would give other counts."""


def count_steps(index: Index, cleaning: Cleaning | None, runs: Sequence[Run], names: Sequence[str]) -> list[Any]:
    """Return for each source what was encoded, what the mix dropped by reason, and what is left, as JSON values.

    Args:
        index: the documents, after the last step.
        cleaning: the presets that were applied.
        runs: all runs, with their tokens.
        names: the sources' names.
    """
    read = np.zeros((len(names), 2), np.int64)
    for run in runs:
        read[run.source] += (run.num_documents, run.tokens_bytes // np.dtype(run.dtype).itemsize)
    left = np.stack([index.documents, index.tokens.sum(axis=0)], axis=1)
    steps: list[Any] = []
    for source, name in enumerate(names):
        tokens = index.dropped_tokens[source].copy()
        if cleaning is not None and source in cleaning.sources:
            tokens.update(cleaning.first_tokens(source))
        dropped = {
            reason: {"documents": documents, "tokens": tokens[reason]}
            for reason, documents in index.dropped[source].items()
        }
        steps.append({"name": name, "read": _counts(read[source]), "dropped": dropped, "left": _counts(left[source])})
    return steps


def _counts(pair: Sequence[int] | np.ndarray[Any, Any]) -> dict[str, int]:
    return {"documents": int(pair[0]), "tokens": int(pair[1])}
