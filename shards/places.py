"""Where something stands in a set: its document with source, unit and row, and the text around it.

Costs one pass over the document table of each shard asked about, up to the last row wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shards.documents import iter_documents
from shards.problems import Problem, ShardSetError
from shards.reader import Shard

CONTEXT_BYTES = 120
"""Bytes of text shown on each side of a hit."""


@dataclass(frozen=True, slots=True)
class Place:
    """One document of a set: its number in its shard, its tokens [start, start + tokens) there, where it came from."""

    shard: str
    document: int
    start: int
    tokens: int
    source: str
    unit: str
    row: int
    hash: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the place."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A hit and the text on either side of it; bytes that are not UTF-8 are lone surrogates."""

    before: str
    hit: str
    after: str

    def to_dict(self) -> dict[str, str]:
        """Return the JSON object of the excerpt."""
        return asdict(self)


def find_places(shard: Shard, numbers: Sequence[int]) -> list[Place]:
    """Return where documents of a shard are from, in ascending order of their numbers.

    Raises:
        ShardSetError: the document table is not what the manifest says.
    """
    wanted = np.unique(np.asarray(numbers, np.int64))
    found: list[Place] = []
    first = 0
    for batch in iter_documents(shard, ["start", "length", "source", "unit", "row", "hash"]):
        here = wanted[(wanted >= first) & (wanted < first + batch.num_rows)]
        rows: list[dict[str, Any]] = batch.take((here - first).tolist()).to_pylist() if len(here) else []
        for number, row in zip(here.tolist(), rows, strict=True):
            start, length = row["start"], row["length"]
            if not 0 < length <= shard.num_tokens - start:
                message = f"tokens [{start}, {start + length}) of {shard.num_tokens}; expected a range inside the shard"
                raise ShardSetError([Problem("document_table", f"{shard.name} document {number}", message)])
            found.append(
                Place(
                    shard.name, number, start, length, row["source"], row["unit"], row["row"], bytes(row["hash"]).hex()
                )
            )
        first += batch.num_rows
        if len(wanted) == 0 or first > int(wanted[-1]):
            break
    return found


def cut_excerpt(text: bytes, start: int, end: int, *, around: int = CONTEXT_BYTES) -> Excerpt:
    """Return the bytes [start, end) of a text with `around` bytes on each side, cut between characters.

    Of a hit of more than `2 * around` bytes the beginning is returned, and nothing after it.
    """
    cut = start + 2 * around
    if end > cut:
        while cut > start + 1 and text[cut] & 0xC0 == 0x80:
            cut -= 1
        text, end = text[:cut], cut
    low, high = max(0, start - around), min(len(text), end + around)
    while low > 0 and low < start and text[low] & 0xC0 == 0x80:
        low += 1
    while high < len(text) and high > end and text[high] & 0xC0 == 0x80:
        high -= 1
    before, hit, after = text[low:start], text[start:end], text[end:high]
    return Excerpt(*(part.decode("utf-8", "surrogateescape") for part in (before, hit, after)))
