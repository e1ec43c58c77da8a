"""Find the documents of a set by their content hash, or by the beginning of it.

Costs one pass over the column `hash` of the document tables, 16 bytes per document; tokens are not read.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import re
from typing import Any

import numpy as np

from shards.errors import InputError, plural
from shards.format.document_table import iter_documents, read_hashes
from shards.format.reader import ShardSet
from shards.terminal.workers import map_tasks
from shards.trace.locate import Place, find_places

LEAST_DIGITS = 8
"""Of an abbreviated hash. Of a billion documents, one in four shares its first 8 digits with another one."""
DIGITS = 32
SHOWN = 5
"""Hashes that are listed if several have the beginning."""


def parse_hash(text: str) -> str:
    """Return the hexadecimal digits of a hash, or of its beginning, that a person gives.

    Raises:
        InputError: it is not hexadecimal, or has too few or too many digits.
    """
    digits = text.strip().lower()
    if not re.fullmatch(r"[0-9a-f]+", digits) or not LEAST_DIGITS <= len(digits) <= DIGITS:
        raise InputError(
            f"--hash {text!r:.60}: expected a content hash: {DIGITS} hexadecimal digits, or at least the first "
            f"{LEAST_DIGITS} of them. `--document FILE` takes a document's text."
        )
    return digits


def hash_bounds(digits: str) -> tuple[int, int]:
    """Return the lowest hash that begins with these digits, and one past the highest, as numbers of 128 bits."""
    rest = 4 * (DIGITS - len(digits))
    low = int(digits, 16) << rest
    return low, low + (1 << rest)


def find_hash(shard_set: ShardSet, digits: str, *, workers: int = 1) -> list[Place]:
    """Return the places of the documents with a hash, in the set's order; several if a source is repeated.

    Args:
        shard_set: the set.
        digits: the digits of the hash, or of its beginning.
        workers: number of processes; the result does not depend on it.

    Raises:
        ShardSetError: a document table is not what the manifest says.
        OSError: a file cannot be read.
    """
    found: list[Place] = []
    for _, places in map_tasks(_search, (shard_set, digits), range(len(shard_set.shards)), workers):
        found += places
    return found


def check_unique(digits: str, hashes: set[str]) -> None:
    """Check that at most one hash begins with these digits.

    Raises:
        InputError: with some of the hashes.
    """
    if len(hashes) > 1:
        listed = ", ".join(sorted(hashes)[:SHOWN])
        raise InputError(f"--hash {digits}: {plural(len(hashes), 'document')} have it: {listed}. Give more digits.")


def _search(shared: tuple[ShardSet, str], number: int) -> list[Place]:
    shard_set, digits = shared
    shard = shard_set.shards[number]
    # Whole bytes first; of an odd number of digits, the last one is half a byte.
    start = np.frombuffer(bytes.fromhex(digits[: len(digits) // 2 * 2]), np.uint8)
    numbers: list[int] = []
    first = 0
    for batch in iter_documents(shard, ["hash"]):
        hashes = read_hashes(batch)
        found = (hashes[:, : len(start)] == start).all(axis=1)
        if len(digits) % 2:
            found &= hashes[:, len(start)] >> 4 == int(digits[-1], 16)
        numbers += (first + np.flatnonzero(found)).tolist()
        first += batch.num_rows
    return find_places(shard, numbers)


def describe_found_hash(shard_set: ShardSet, place: Place) -> dict[str, Any]:
    """Return a place that `find_hash` found as JSON values, with its split and the file of its unit."""
    split = shard_set.shard(place.shard).entry.split
    return {"split": split, "file": place.unit.rpartition("@")[0] or place.unit} | place.to_dict()
