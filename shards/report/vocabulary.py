"""The vocabulary in a report, from the audit's counts: occurrences by rank, and the longest and rarest entries."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shards.audit.tokens_table import TOKENS_FILE, read_column, read_special, read_values
from shards.report.audited import Audited

if TYPE_CHECKING:
    import numpy.typing as npt

SHOWN_ENTRIES = 12
MAX_POINTS = 160
"""Points of the curve by rank, spaced evenly on a logarithmic axis; more would not be visible."""


@dataclass(frozen=True)
class Entry:
    """An entry of the vocabulary. `text` has lone surrogates for bytes that are not UTF-8; `bytes` is its length."""

    id: int
    text: str
    bytes: int
    count: int


@dataclass(frozen=True)
class VocabularyFacts:
    """The vocabulary as training uses it.

    Attributes:
        ranks, counts: points of the curve of counts in falling order, rank from 1; ids never seen are left out.
        seen: ids that occur; `never_seen` counts those that do not, except special ids and single bytes.
        rare: ids that occur fewer than `rare_below` times; they are among `seen`.
        longest: the longest entries by bytes, without special ids.
        rarest: the rarest entries in the audit, rarest first.
    """

    ranks: list[int]
    counts: list[int]
    seen: int
    never_seen: int
    rare: int
    rare_below: int
    longest: list[Entry]
    rarest: list[Entry]


def describe_vocabulary(audited: Audited) -> VocabularyFacts:
    """Return the facts of the vocabulary from an audit.

    Raises:
        OSError: the audit's files cannot be read.
    """
    path = audited.folder / TOKENS_FILE
    counts = read_column(path, "count").astype(np.int64)
    special = read_special(path)
    entries: list[bytes] = list(read_values(path, "bytes").to_pylist())
    lengths = np.array([len(entry) for entry in entries], np.int64)
    falling = -np.sort(-counts[counts > 0])
    ranks = np.unique(np.geomspace(1, max(1, len(falling)), MAX_POINTS).round().astype(np.int64))[: len(falling)]
    below = int(audited.found["rare_below"])
    return VocabularyFacts(
        ranks=ranks.tolist(),
        counts=falling[ranks - 1].tolist(),
        seen=len(falling),
        never_seen=int(((counts == 0) & ~special & (lengths != 1)).sum()),
        rare=int(((counts > 0) & (counts < below) & ~special).sum()),
        rare_below=below,
        longest=_longest(entries, counts, np.where(special, -1, lengths)),
        rarest=[_entry(row["id"], entries, row["count"]) for row in audited.rows("rare")[:SHOWN_ENTRIES]],
    )


def _entry(token: int, entries: list[bytes], count: int) -> Entry:
    content = entries[token]
    return Entry(token, content.decode("utf-8", "surrogateescape"), len(content), count)


def _longest(entries: list[bytes], counts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> list[Entry]:
    """Return the longest entries; those with a length of 0 or less are left out."""
    order: list[int] = np.argsort(-lengths, kind="stable")[:SHOWN_ENTRIES].tolist()
    return [_entry(token, entries, int(counts[token])) for token in order if lengths[token] > 0]
