"""The interface of a layout, and what several layouts share.

Tokens come frame by frame (1 MiB), or in blocks of whole documents of about 8 MB; document tables in batches. So memory
does not grow with the set, only with its longest document if the layout stores documents one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from shards.convert.layouts import LAYOUTS, UINT16_LAYOUTS, LayoutName
from shards.convert.split_reader import EXPORT_BLOCK_TOKENS

if TYPE_CHECKING:
    from shards.convert.split_reader import Lengths, SplitReader, Tokens


class Layout(Protocol):
    """A module of this package that knows one layout."""

    USAGE: str
    """How to load the result; `{out}` is its folder, `{split}` a split, `{token_size}` the bytes of a token."""

    def find_export_obstacles(self, reader: SplitReader) -> list[str]:
        """Return the reasons why the layout cannot hold a split, if any. Reads lengths at most, never tokens."""
        ...

    def write_split(self, folder: Path, reader: SplitReader) -> None:
        """Write a split into the export's folder."""
        ...

    def read_tokens(self, folder: Path, reader: SplitReader) -> Iterator[Tokens]:
        """Read a split's tokens back from the files alone."""
        ...

    def read_lengths(self, folder: Path, reader: SplitReader) -> Iterator[Lengths]:
        """Read the lengths of a split's documents back from the files alone."""
        ...


def refuse_uint32_layout(reader: SplitReader, loader: str) -> list[str]:
    """Return why a loader that reads uint16 cannot read the set: its vocabulary is too large; nothing if it can."""
    if reader.dtype.itemsize == 2:
        return []
    *most, last = (name for name in LAYOUTS if name not in UINT16_LAYOUTS)
    size = reader.shard_set.vocab_size
    return [f"{loader} reads uint16; a vocabulary of {size} does not fit. Use {', '.join(most)} or {last}."]


def longest_layout_document(reader: SplitReader) -> int:
    """Return the tokens of the split's longest document, EOS included."""
    return max((int(lengths.max()) for lengths in reader.iter_lengths()), default=0)


def read_layout_array(path: Path, dtype: np.dtype[Any], *, offset: int = 0) -> Iterator[Any]:
    """Yield a file's array from a byte offset to its end, in blocks.

    Raises:
        ValueError: what follows the offset is not a whole number of elements.
    """
    size = path.stat().st_size - offset
    if size < 0 or size % dtype.itemsize:
        raise ValueError(f"{path.name}: {size} bytes of {dtype.name}; expected a multiple of {dtype.itemsize}")
    with path.open("rb") as file:
        file.seek(offset)
        while data := file.read(EXPORT_BLOCK_TOKENS * dtype.itemsize):
            yield np.frombuffer(data, dtype)


def split_layout_at_eos(blocks: Iterator[Tokens], eos_id: int) -> Iterator[Lengths]:
    """Yield the lengths of the documents of a stream, EOS included; a rest without EOS is the last document."""
    position = last = 0
    for tokens in blocks:
        ends: Lengths = np.flatnonzero(tokens == eos_id).astype(np.int64) + (position + 1)
        position += len(tokens)
        if len(ends):
            yield np.diff(ends, prepend=last)
            last = int(ends[-1])
    if last < position:
        yield np.array([position - last], np.int64)


def load_layout(name: LayoutName) -> Layout:
    """Return the module of a layout by its name."""
    return cast("Layout", import_module(f"shards.convert.layouts.{name}"))
