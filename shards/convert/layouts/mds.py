"""Mosaic MDS: a folder per split with `shard.00000.mds` and on, at most 64 MiB each, and `index.json`.

A sample is a document. A shard: uint32 samples n; uint32 offsets from the file's start (n + 1); the columns'
description as JSON; the samples. A sample of our one column, `tokens` of encoding `ndarray:uint16`: uint32 bytes that
follow; one byte 4 + s for one dimension whose size takes 2^s bytes; the size; the ids. Offsets are uint32, so a
document near 4 GiB is refused.

Source: mosaicml/streaming, streaming/base/format/mds/writer.py and encodings.py (`NDArray`).
"""

from __future__ import annotations

import json
import struct
from typing import Any

from shards.convert.layouts import chunks
from shards.convert.layouts.layout import OpenFile
from shards.convert.split_reader import SplitReader

USAGE = 'StreamingDataset(local="{out}", split="{split}", shuffle=True, batch_size=8)[0]["tokens"]'

_EXTENTS = (struct.Struct("<IBB"), struct.Struct("<IBH"), struct.Struct("<IBI"))
"""A sample's head, by how many bytes its number of tokens takes: 1, 2 or 4."""


def find_export_obstacles(reader: SplitReader) -> list[str]:
    """Refuse a document that is too long for the uint32 offsets of MDS."""
    return chunks.find_long_document(reader, "MDS")


def write_split(open_file: OpenFile, reader: SplitReader) -> None:
    """Write a split's MDS shards and their index."""
    config: dict[str, Any] = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": chunks.MAX_CHUNK_BYTES,
        "column_names": ["tokens"],
        "column_encodings": [f"ndarray:{reader.dtype.name}"],
        "column_sizes": [None],
    }
    description = json.dumps(config, sort_keys=True).encode()
    shards: list[dict[str, Any]] = []
    for name, size, items in chunks.write_chunks(
        open_file, reader, "shard.{:05d}.mds", description=description, pack_item_head=pack_mds_head
    ):
        raw: dict[str, Any] = {"basename": name, "bytes": size, "hashes": {}}
        shards.append({"samples": len(items), "raw_data": raw, "zip_data": None, **config})
    with open_file(f"{reader.split}/index.json") as file:
        file.write(json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode())


def pack_mds_head(length: int, token_bytes: int) -> bytes:
    """Return the bytes before the ids of a document."""
    scale = 0 if length < 1 << 8 else 1 if length < 1 << 16 else 2
    extent = 1 << scale
    return _EXTENTS[scale].pack(1 + extent + length * token_bytes, 4 + scale, length)
