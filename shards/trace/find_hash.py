"""Find the documents of a set by their content hash, or by the beginning of it.

Costs one pass over the column `hash` of the document tables, 16 bytes per document; tokens are not read.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shards.errors import InputError, plural
from shards.format.content_hash import split_column
from shards.format.document_table import iter_documents
from shards.format.reader import ShardSet
from shards.trace.locate import Place, find_places
from shards.workers import map_tasks

LEAST_DIGITS = 8
"""Of an abbreviated hash. Of a billion documents, one in four shares its first 8 digits with another one."""
DIGITS = 32
SHOWN = 5
"""Hashes that are listed if several have the beginning."""


@dataclass(frozen=True)
class HashQuery:
    """A content hash in hex, or its beginning."""

    digits: str

    @property
    def is_whole(self) -> bool:
        """Whether these are all digits of the hash."""
        return len(self.digits) == DIGITS

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The lowest hash with these digits, and one past the highest, as numbers of 128 bits."""
        rest = 4 * (DIGITS - len(self.digits))
        low = int(self.digits, 16) << rest
        return low, low + (1 << rest)


def parse_hash(text: str) -> HashQuery:
    """Return the query with which `find_hash` searches for a hash that a person gives.

    Raises:
        InputError: it is not hexadecimal, or has too few or too many digits.
    """
    digits = text.strip().lower()
    if not re.fullmatch(r"[0-9a-f]+", digits) or not LEAST_DIGITS <= len(digits) <= DIGITS:
        raise InputError(
            f"--hash {text!r:.60}: expected a content hash: {DIGITS} hexadecimal digits, or at least the first "
            f"{LEAST_DIGITS} of them. `--document FILE` takes a document's text."
        )
    return HashQuery(digits)


def find_hash(shard_set: ShardSet, query: HashQuery, *, workers: int = 1) -> list[Place]:
    """Return the places of the documents with a hash, in the set's order; several if a source is repeated.

    Args:
        shard_set: the set.
        query: the hash, or its beginning.
        workers: number of processes; the result does not depend on it.

    Raises:
        ShardSetError: a document table is not what the manifest says.
        OSError: a file cannot be read.
    """
    found: list[Place] = []
    for _, places in map_tasks(_search, (shard_set, query), range(len(shard_set.shards)), workers):
        found += places
    return found


def check_unique(query: HashQuery, hashes: set[str]) -> None:
    """Check that at most one hash has the digits of a query.

    Raises:
        InputError: with some of the hashes.
    """
    if len(hashes) > 1:
        listed = ", ".join(sorted(hashes)[:SHOWN])
        raise InputError(
            f"--hash {query.digits}: {plural(len(hashes), 'document')} have it: {listed}. Give more digits."
        )


def _search(shared: tuple[ShardSet, HashQuery], number: int) -> list[Place]:
    shard_set, query = shared
    shard = shard_set.shards[number]
    low, high = query.bounds
    half = (1 << 64) - 1
    numbers: list[int] = []
    first = 0
    for batch in iter_documents(shard, ["hash"]):
        hashes = split_column(batch.column("hash"))
        if query.is_whole:
            found = (hashes[:, 0] == np.uint64(low >> 64)) & (hashes[:, 1] == np.uint64(low & half))
        else:  # the digits may end in either half
            found = (hashes[:, 0] >= np.uint64(low >> 64)) & (hashes[:, 0] <= np.uint64((high - 1) >> 64))
            if len(query.digits) > DIGITS // 2:
                found &= (hashes[:, 1] >= np.uint64(low & half)) & (hashes[:, 1] <= np.uint64((high - 1) & half))
        numbers += (first + np.flatnonzero(found)).tolist()
        first += batch.num_rows
    return find_places(shard, numbers) if numbers else []


def describe_found_hash(shard_set: ShardSet, place: Place) -> dict[str, Any]:
    """Return a place that `find_hash` found as JSON values, with its split and the file of its unit."""
    splits = {entry.name: entry.split for entry in shard_set.manifest.shards}
    return {"split": splits[place.shard], "file": place.unit.rpartition("@")[0] or place.unit} | place.to_dict()
