"""Megatron-LM: `train.bin` with the tokens end to end and `train.idx` with the place of each document.

The index, all little-endian: `MMIDIDX`, two zero bytes; uint64 version 1; uint8 dtype (8: uint16, 4: int32); uint64
sequences n; uint64 n + 1; int32 lengths (n); int64 byte offsets (n); int64 document bounds, 0 to n (n + 1). A document
is one sequence. Megatron has no uint32: ids of a larger vocabulary are int32, of the same bytes below 2^31.

Source: NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py, `_IndexWriter` and `DType`.
"""

import struct

import numpy as np

from shards.convert.layouts.layout import OpenFile, SplitReader

USAGE = 'IndexedDataset("{out}/{split}")  # or --data-path {out}/{split}'

_HEADER = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\0\0"
_DTYPE_CODES = {2: 8, 4: 4}


def write_split(open_file: OpenFile, reader: SplitReader) -> None:
    """Write Megatron's `SPLIT.bin`, then `SPLIT.idx` in one pass over the document tables for each of its arrays."""
    with open_file(f"{reader.split}.bin") as file:
        for tokens in reader.iter_tokens():
            file.write(tokens.data)
    # The index has one array after the other; each is one pass over the tables.
    count, size = reader.shards.num_documents, reader.shard_set.dtype.itemsize
    with open_file(f"{reader.split}.idx") as file:
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
