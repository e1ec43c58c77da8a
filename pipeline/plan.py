"""Plan: what a recipe would read, write and need, from footers alone. Runs nothing.

Tokens are estimates until the text is encoded: `TEXT_BYTES_PER_TOKEN` for what is likely, `LEAST_BYTES_PER_TOKEN` where
too little disk would be found out too late.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.mix import Shares
from pipeline.recipe import Recipe
from pipeline.run import DOCUMENT_DTYPE
from pipeline.sources.base import SourceError, Unit, make_units, source_module
from shards.manifest import dtype_for

TEXT_BYTES_PER_TOKEN = 4.3  # measured on English web text and books with a 32 K vocabulary: 4.2 to 4.5
LEAST_BYTES_PER_TOKEN = 2.8  # mathematics in LaTeX and source code: 2.9 to 3.3
COMPRESSED_SHARE = 0.72  # zstd level 3 on uint16 tokens of a 32 K vocabulary: 0.65 to 0.70
_GUESSED_DOCUMENT_BYTES = 1000  # where no footer tells the rows
_TABLE_BYTES = 30  # of a document table, a document: mostly its hash


class DiskError(ValueError):
    """The disk is too small for the build."""


@dataclass(frozen=True, slots=True)
class SourceEstimate:
    """What one source offers."""

    name: str
    share: float
    files: int
    units: int
    documents: int | None
    text_bytes: int
    stored_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a build needs."""

    sources: tuple[SourceEstimate, ...]
    train_tokens: int
    most_tokens: int
    """Training tokens that the sources allow at these weights."""
    val_tokens: int
    shards: int
    scratch_bytes: int
    output_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as JSON values."""
        return asdict(self)


def resolve_units(recipe: Recipe) -> list[list[Unit]]:
    """Resolve every source into units.

    Raises:
        SourceError: with the faults of all sources.
    """
    units: list[list[Unit]] = []
    faults: list[str] = []
    for index, source in enumerate(recipe.sources):
        try:
            units.append(make_units(index, source_module(source.kind).resolve(source)))
        except SourceError as error:
            faults.append(str(error))
    if not faults:
        faults = _check_val_tokens(recipe, units)
    if faults:
        raise SourceError("\n".join(faults))
    return units


def _check_val_tokens(recipe: Recipe, units: list[list[Unit]]) -> list[str]:
    """Find sources that are empty or certainly too small: a token is at least a byte, or one EOS a document."""
    shares = Shares(tuple(source.weight for source in recipe.sources))
    faults: list[str] = []
    for index, (source, own) in enumerate(zip(recipe.sources, units, strict=True)):
        rows = [span.rows for unit in own for span in unit.spans]
        most = sum(unit.text_bytes for unit in own)
        most += sum(row for row in rows if row is not None) if None not in rows else most
        wanted = shares.target(index, recipe.split.val_tokens, 1, 1)
        if not most:
            faults.append(f"source {source.name!r}: its files hold no document. Correct `paths`.")
        elif wanted >= most:
            faults.append(
                f"split.val_tokens: {recipe.split.val_tokens} asks for {wanted} tokens of {source.name!r}, which has "
                f"at most {most}. Ask for less, or add data."
            )
    return faults


def estimate(recipe: Recipe, units: list[list[Unit]]) -> Estimate:
    """Estimate a build's tokens and disk space."""
    shares = Shares(tuple(source.weight for source in recipe.sources))
    sources: list[SourceEstimate] = []
    for index, (source, own) in enumerate(zip(recipe.sources, units, strict=True)):
        spans = [span for unit in own for span in unit.spans]
        rows = [span.rows for span in spans]
        text_bytes = sum(span.text_bytes for span in spans)
        sources.append(
            SourceEstimate(
                name=source.name,
                share=float(shares.fractions[index]),
                files=len({span.url for span in spans}),
                units=len(own),
                documents=sum(row for row in rows if row is not None) if None not in rows else None,
                text_bytes=text_bytes,
                stored_bytes=sum(span.stored_bytes for span in spans),
                tokens=int(text_bytes / TEXT_BYTES_PER_TOKEN),
            )
        )
    repeats = recipe.mix.max_epochs if recipe.mix.when_short == "repeat" else 1
    most = min(int(source.tokens * repeats / share) for source, share in zip(sources, shares.fractions, strict=True))
    wanted = most if recipe.mix.tokens == "max" else recipe.mix.tokens
    train = wanted if recipe.mix.when_short == "error" else min(wanted, most)
    return Estimate(
        sources=tuple(sources),
        train_tokens=train,
        most_tokens=most,
        val_tokens=recipe.split.val_tokens,
        shards=-(-train // recipe.shards.tokens) + -(-recipe.split.val_tokens // recipe.shards.tokens),
        scratch_bytes=sum(scratch_bytes(recipe, unit) for own in units for unit in own),
        output_bytes=_output_bytes(recipe, train + recipe.split.val_tokens, sum(source.tokens for source in sources)),
    )


def scratch_bytes(recipe: Recipe, unit: Unit) -> int:
    """Estimate, on the safe side, what a unit's run takes on disk."""
    tokens = unit.text_bytes / LEAST_BYTES_PER_TOKEN
    documents = sum(span.rows if span.rows is not None else _guess_rows(span.text_bytes) for span in unit.spans)
    return int(tokens * _token_size(recipe) + documents * (DOCUMENT_DTYPE.itemsize + 1))


def _output_bytes(recipe: Recipe, tokens: int, offered: int) -> int:
    safe = tokens * TEXT_BYTES_PER_TOKEN / LEAST_BYTES_PER_TOKEN if tokens >= offered else tokens
    documents = tokens * TEXT_BYTES_PER_TOKEN / _GUESSED_DOCUMENT_BYTES
    return int(safe * _token_size(recipe) * COMPRESSED_SHARE + documents * _TABLE_BYTES)


def _guess_rows(text_bytes: int) -> int:
    return text_bytes // _GUESSED_DOCUMENT_BYTES + 1


def _token_size(recipe: Recipe) -> int:
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
