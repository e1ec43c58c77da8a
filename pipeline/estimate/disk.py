"""Disk: what a build takes of it, on the safe side, and the refusal of one that is too small."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pipeline.encode.run import DOCUMENT_DTYPE
from pipeline.recipe.schema import Recipe
from pipeline.recipe.shares import Demand
from pipeline.sources.base import Unit
from pipeline.sources.selection import FIRST_BYTES_PER_TOKEN as LEAST_BYTES_PER_TOKEN
from shards.errors import InputError
from shards.format.manifest import dtype_for

COMPRESSED_SHARE = 0.72  # zstd level 3 on uint16 tokens of a 32 K vocabulary: 0.65 to 0.70
ROW_BYTES = 30  # of a document table: mostly a hash
FETCH_SCRATCH_SHARE = 0.6
"""Of fetched text: spool and documents, both compressed; 0.25 each on Python files, measured."""
GUESSED_DOCUMENT_BYTES = 1000  # where no footer tells the rows


class DiskError(InputError):
    """The disk is too small for the build."""


def scratch_bytes(recipe: Recipe, unit: Unit) -> int:
    """Return, on the safe side, what a unit's run takes on disk."""
    tokens = unit.text_bytes / LEAST_BYTES_PER_TOKEN
    documents = sum(
        span.rows if span.rows is not None else span.text_bytes // GUESSED_DOCUMENT_BYTES + 1 for span in unit.spans
    )
    return int(tokens * token_size(recipe) + documents * (DOCUMENT_DTYPE.itemsize + 1))


def most_output_bytes(recipe: Recipe, text_bytes: list[int]) -> int:
    """Return, on the safe side, what the set takes on disk that these bytes of text of each source allow."""
    grant = Demand(recipe).grant([size / LEAST_BYTES_PER_TOKEN for size in text_bytes])
    tokens = grant.train_tokens + recipe.split.val_tokens
    documents = tokens * LEAST_BYTES_PER_TOKEN / GUESSED_DOCUMENT_BYTES
    return int(tokens * token_size(recipe) * COMPRESSED_SHARE + documents * ROW_BYTES)


def token_size(recipe: Recipe) -> int:
    """Return the bytes of a token before compression."""
    vocab_size = recipe.tokenizer.vocab_size
    return 4 if vocab_size is not None and dtype_for(vocab_size) == "uint32" else 2


def check_disk(needs: list[tuple[str, Path, int]]) -> None:
    """Refuse a disk that is too small.

    Args:
        needs: (what for, folder, bytes); folders on one file system share its space.

    Raises:
        DiskError: with the numbers, for each file system that is too small.
    """
    by_device: dict[int, list[tuple[str, Path, int]]] = {}
    for need in needs:
        by_device.setdefault(os.stat(_existing(need[1])).st_dev, []).append(need)
    faults: list[str] = []
    for group in by_device.values():
        free = shutil.disk_usage(_existing(group[0][1])).free
        total = sum(size for _, _, size in group)
        if total > free:
            parts = ", ".join(f"{size / 1e9:.2f} GB for {what} in {folder}" for what, folder, size in group)
            faults.append(
                f"disk: needs {total / 1e9:.2f} GB ({parts}); {free / 1e9:.2f} GB are free, "
                f"{(total - free) / 1e9:.2f} GB too few. Free some, lower mix.tokens, or use --work on another disk."
            )
    if faults:
        raise DiskError("\n".join(faults))


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder
