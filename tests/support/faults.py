"""Planted faults: each takes a valid set (or its plan) and damages one thing. `test_validate.py` runs them all.

`FAULTS` holds (function, kinds): full validation must name exactly these kinds of problem. A function that takes
`folder` damages a copy of the good set; one that takes `plan` changes the plan, from which a set with consistent
checksums is then written. The faults are in `faults_metadata`, `faults_tokens`, `faults_documents`.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.shard_sets import Plan, sha256

FAULTS: list[tuple[Callable[..., Any], set[str]]] = []


def names(*kinds: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a fault and the kinds of problem that must be named."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        FAULTS.append((function, set(kinds)))
        return function

    return register


def edit(folder: Path, change: Callable[[dict[str, Any]], Any], name: str = "manifest.json") -> None:
    """Change a JSON file."""
    data = json.loads((folder / name).read_text())
    change(data)
    (folder / name).write_text(json.dumps(data, indent=2) + "\n")


def reseal(folder: Path, shard: str = "train-00000") -> None:
    """Make manifest and sidecar agree with a shard's changed files, as a careful forger would."""

    def update(entry: dict[str, Any]) -> None:
        for file in entry["files"].values():
            file["bytes"] = (folder / file["path"]).stat().st_size
            file["sha256"] = sha256(folder / file["path"])

    edit(folder, update, f"{shard}.json")
    edit(folder, lambda manifest: [update(entry) for entry in manifest["shards"] if entry["name"] == shard])


def flip(path: Path, at: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def seek_entries(path: Path) -> tuple[bytes, list[tuple[int, int]]]:
    """Return a tokens file's frames, joined, and its seek table's entries."""
    data = path.read_bytes()
    count = struct.unpack("<I", data[-9:-5])[0]
    table = data[-9 - 8 * count : -9]
    return data[: -17 - 8 * count], list(struct.iter_unpack("<II", table))


def write_entries(path: Path, frames: bytes, entries: list[tuple[int, int]]) -> None:
    """Write a tokens file from frames and seek table entries, true or false."""
    table = b"".join(struct.pack("<II", *entry) for entry in entries)
    footer = struct.pack("<IBI", len(entries), 0, 0x8F92EAB1)
    path.write_bytes(frames + struct.pack("<II", 0x184D2A5E, len(table) + len(footer)) + table + footer)


def replace_tokens(plan: Plan, split: str, shard: int, number: int, tokens: list[int]) -> None:
    """Give a document other tokens."""
    document = plan.documents[split][shard][number]
    plan.documents[split][shard][number] = dataclasses.replace(document, tokens=np.array(tokens, document.tokens.dtype))
