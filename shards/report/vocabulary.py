"""What the audit's counts tell of the vocabulary: how often ids occur by rank, and the longest and rarest entries."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shards.audit.audit import TOKENS_FILE
from shards.report.audited import Audited

if TYPE_CHECKING:
    import numpy.typing as npt

SHOWN_ENTRIES = 12
MAX_POINTS = 160
"""Of the curve by rank: spaced evenly on a logarithmic axis, more cannot be told apart."""


@dataclass(frozen=True)
class Entry:
    """An entry of the vocabulary. `text` has lone surrogates for bytes that are not UTF-8; `bytes` is its length."""

    id: int
    text: str
    bytes: int
    count: int


@dataclass(frozen=True)
class VocabularyFacts:
    """What training holds of the vocabulary.

    Attributes:
        ranks, counts: points of the curve of counts in falling order, rank from 1; ids never seen are left out.
        seen: ids that occur at all; `never_seen` those that do not, special ids apart.
        rare: ids that occur fewer than `rare_below` times; they are among `seen`.
        longest: by bytes, special ids apart.
        rarest: the audit's, rarest first.
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
    falling = -np.sort(-counts[counts > 0])
    ranks = np.unique(np.geomspace(1, max(1, len(falling)), MAX_POINTS).round().astype(np.int64))[: len(falling)]
    below = int(audited.found["rare_below"])
    return VocabularyFacts(
        ranks=ranks.tolist(),
        counts=falling[ranks - 1].tolist(),
        seen=len(falling),
        never_seen=int(((counts == 0) & ~special).sum()),
        rare=int(((counts > 0) & (counts < below) & ~special).sum()),
        rare_below=below,
        longest=_longest(path, counts, special),
        rarest=[_entry(row) for row in audited.rows("rare")[:SHOWN_ENTRIES]],
    )


def _entry(row: dict[str, Any]) -> Entry:
    text: str = row["text"]
    return Entry(row["id"], text, len(text.encode("utf-8", "surrogateescape")), row["count"])


def _longest(path: Path, counts: npt.NDArray[np.int64], special: npt.NDArray[np.bool_]) -> list[Entry]:
    entries: list[bytes] = list(_read(path, "bytes").to_pylist())
    lengths = np.where(special, -1, np.array([len(entry) for entry in entries], np.int64))
    order: list[int] = np.argsort(-lengths, kind="stable")[:SHOWN_ENTRIES].tolist()
    found: list[Entry] = []
    for token in order:
        held = entries[token]
        if held and not special[token]:
            found.append(Entry(token, held.decode("utf-8", "surrogateescape"), len(held), int(counts[token])))
    return found


def read_column(path: Path, name: str) -> npt.NDArray[Any]:
    """Return a column of numbers.

    Raises:
        KeyError: the file has no such column.
    """
    return np.from_dlpack(_read(path, name).combine_chunks())


def read_special(path: Path) -> npt.NDArray[np.bool_]:
    """Return which ids are special, bool `(vocab_size,)`."""
    return np.array(_read(path, "special").to_pylist(), np.bool_)


def _read(path: Path, name: str) -> Any:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return cast("Any", file.read(columns=[name], use_threads=False).column(name))
