"""Megatron-LM: `train.bin` with the tokens end to end and `train.idx` with the place of each document.

The index, all little-endian: `MMIDIDX`, two zero bytes; uint64 version 1; uint8 dtype (8: uint16, 4: int32); uint64
sequences n; uint64 n + 1; int32 lengths (n); int64 byte offsets (n); int64 document bounds, 0 to n (n + 1). A document
is one sequence. Megatron has no uint32: ids of a larger vocabulary are int32, of the same bytes below 2^31.

Source: NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py, `_IndexWriter` and `DType`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shards.convert.layouts.layout import longest_layout_document, read_layout_array
from shards.errors import plural
from shards.stores.files import atomic_open

if TYPE_CHECKING:
    from shards.convert.split_reader import Lengths, SplitReader, Tokens

USAGE = 'IndexedDataset("{out}/{split}")  # or --data-path {out}/{split}'

_HEADER = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\0\0"
_DTYPE_CODES = {2: 8, 4: 4}
_MAX_INT32 = (1 << 31) - 1


def find_export_obstacles(reader: SplitReader) -> list[str]:
    """Refuse ids and lengths that Megatron's int32 does not hold."""
    obstacles: list[str] = []
    size, longest = reader.shard_set.vocab_size, longest_layout_document(reader)
    if size - 1 > _MAX_INT32:
        obstacles.append(f"Megatron reads int32; a vocabulary of {size} does not fit")
    if longest > _MAX_INT32:
        obstacles.append(f"Megatron counts a document's tokens in int32; the longest of {reader.split} has {longest}")
    return obstacles


def write_split(folder: Path, reader: SplitReader) -> None:
    """Write Megatron's `SPLIT.bin`, then `SPLIT.idx` in one pass over the document tables for each of its arrays."""
    with atomic_open(folder / f"{reader.split}.bin") as file:
        for tokens in reader.iter_tokens():
            file.write(tokens.data)
    count, size = reader.num_documents, reader.dtype.itemsize
    with atomic_open(folder / f"{reader.split}.idx") as file:
        file.write(_HEADER.pack(_MAGIC, 1, _DTYPE_CODES[size], count, count + 1))
        for lengths in reader.iter_lengths():
            file.write(lengths.astype("<i4").data)
        position = 0
        for lengths in reader.iter_lengths():
            ends = np.cumsum(lengths) + position
            file.write(((ends - lengths) * size).astype("<i8").data)
            position = int(ends[-1])
        for first in range(0, count + 1, 1 << 20):
            file.write(np.arange(first, min(first + (1 << 20), count + 1), dtype="<i8").data)


def read_tokens(folder: Path, reader: SplitReader) -> Iterator[Tokens]:
    """Read the tokens of Megatron's `SPLIT.bin`."""
    return read_layout_array(folder / f"{reader.split}.bin", reader.dtype)


def read_lengths(folder: Path, reader: SplitReader) -> Iterator[Lengths]:
    """Read the lengths from Megatron's `SPLIT.idx`, and check its offsets and bounds against them.

    Raises:
        ValueError: the index is not well formed.
    """
    path = folder / f"{reader.split}.idx"
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        raise ValueError(f"{path.name}: {len(head)} bytes; expected {_HEADER.size} of header")
    magic, version, code, count, bounds = _HEADER.unpack(head)
    expected = _HEADER.size + 4 * count + 8 * count + 8 * bounds
    if (magic, version, code, bounds) != (_MAGIC, 1, _DTYPE_CODES[reader.dtype.itemsize], count + 1):
        raise ValueError(f"{path.name}: header {(magic, version, code, count, bounds)} does not fit the tokens")
    if path.stat().st_size != expected:
        raise ValueError(
            f"{path.name}: {path.stat().st_size} bytes; expected {expected} for {plural(count, 'document')}"
        )
    offsets = np.memmap(path, "<i8", "r", offset=_HEADER.size + 4 * count, shape=(count,))
    documents = np.memmap(path, "<i8", "r", offset=_HEADER.size + 12 * count, shape=(bounds,))
    lengths = np.memmap(path, "<i4", "r", offset=_HEADER.size, shape=(count,))
    position = 0
    for first in range(0, count, 1 << 20):
        block: Lengths = lengths[first : first + (1 << 20)].astype(np.int64)
        ends = np.cumsum(block) + position
        starts = (ends - block) * reader.dtype.itemsize
        numbers = np.arange(first, first + len(block))
        if (offsets[first : first + len(block)] != starts).any() or (
            documents[first : first + len(block)] != numbers
        ).any():
            raise ValueError(f"{path.name}: offsets or bounds of documents {first} and on do not follow their lengths")
        yield block
        position = int(ends[-1])
    if documents[-1] != count:
        raise ValueError(f"{path.name}: the last bound is {documents[-1]}; expected {count}")
