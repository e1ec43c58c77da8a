"""The interface of a layout, and what several layouts share.

Tokens come frame by frame (1 MiB), or in blocks of whole documents of about 8 MB; document tables in batches. So memory
does not grow with the set, only with its longest document if the layout stores whole documents.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import BinaryIO, Protocol, cast

from shards.convert.layouts import LAYOUTS, UINT16_LAYOUTS, LayoutName
from shards.convert.split_reader import SplitReader

OpenFile = Callable[[str], AbstractContextManager[BinaryIO]]
"""Opens a file of an export, by its path there, to write it."""


class Layout(Protocol):
    """A module of this package that knows one layout. Equal sets give equal bytes."""

    USAGE: str
    """How to load the result; `{out}` is its folder, `{split}` a split, `{token_size}` the bytes of a token."""

    def find_export_obstacles(self, reader: SplitReader) -> list[str]:
        """Return the reasons why the layout cannot hold a split, if any. Reads lengths at most, never tokens."""
        ...

    def write_split(self, open_file: OpenFile, reader: SplitReader) -> None:
        """Write a split's files."""
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


def load_layout(name: LayoutName) -> Layout:
    """Return the module of a layout by its name."""
    return cast("Layout", import_module(f"shards.convert.layouts.{name}"))
