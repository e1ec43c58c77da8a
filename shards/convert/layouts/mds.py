"""Mosaic MDS: a folder a split with `shard.00000.mds` and on, at most 64 MiB each, and `index.json`.

A sample is a document. A shard: uint32 samples n; uint32 offsets from the file's start (n + 1); the columns'
description as JSON; the samples. A sample of our one column, `tokens` of encoding `ndarray:uint16`: uint32 bytes that
follow; one byte 4 + s for one dimension whose size takes 2^s bytes; the size; the ids. Offsets are uint32, so a
document near 4 GiB is refused.

Source: mosaicml/streaming, streaming/base/format/mds/writer.py and encodings.py (`NDArray`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.convert.layouts.chunks import MAX_CHUNK_BYTES, Chunk, find_long_document, iter_chunks
from shards.errors import plural
from shards.stores.files import atomic_open, write_text

if TYPE_CHECKING:
    from shards.convert.split_reader import Lengths, SplitReader, Tokens

USAGE = 'StreamingDataset(local="{out}", split="{split}", shuffle=True, batch_size=8)[0]["tokens"]'

_EXTENTS = (struct.Struct("<IBB"), struct.Struct("<IBH"), struct.Struct("<IBI"))
"""A sample's head, by how many bytes its number of tokens takes: 1, 2 or 4."""


def find_export_obstacles(reader: SplitReader) -> list[str]:
    """Refuse a document that is too long for the uint32 offsets of MDS."""
    return find_long_document(reader, "MDS")


def write_split(folder: Path, reader: SplitReader) -> None:
    """Write a split's MDS shards and their index."""
    (folder / reader.split).mkdir()
    config = _describe_columns(reader)
    text = json.dumps(config, sort_keys=True).encode()
    shards: list[dict[str, Any]] = []
    overhead = 8 + len(text)  # the number of samples, the first offset, the description
    for index, chunk in enumerate(iter_chunks(reader, pack_mds_head, overhead=overhead, limit=MAX_CHUNK_BYTES)):
        path = folder / reader.split / f"shard.{index:05d}.mds"
        with atomic_open(path) as file:
            file.write(chunk.pack_offsets(len(text)))
            file.write(text)
            file.writelines(chunk.parts)
        raw: dict[str, Any] = {"basename": path.name, "bytes": path.stat().st_size, "hashes": {}}
        shards.append({"samples": len(chunk.sizes), "raw_data": raw, "zip_data": None, **config})
    write_text(folder / reader.split / "index.json", json.dumps({"version": 2, "shards": shards}, sort_keys=True))


def pack_mds_head(length: int, token_bytes: int) -> bytes:
    """Return the bytes before the ids of a document."""
    scale = 0 if length < 1 << 8 else 1 if length < 1 << 16 else 2
    extent = 1 << scale
    return _EXTENTS[scale].pack(1 + extent + length * token_bytes, 4 + scale, length)


def read_tokens(folder: Path, reader: SplitReader) -> Iterator[Tokens]:
    """Read the ids of every MDS sample."""
    for chunk, sizes in _read_samples(folder, reader):
        position = 0
        for length, head in sizes:
            yield np.frombuffer(chunk, reader.dtype, length, position + head)
            position += head + length * reader.dtype.itemsize


def read_lengths(folder: Path, reader: SplitReader) -> Iterator[Lengths]:
    """Read the length of every MDS sample."""
    for _, sizes in _read_samples(folder, reader):
        yield np.array([length for length, _ in sizes], np.int64)


def _describe_columns(reader: SplitReader) -> dict[str, Any]:
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": MAX_CHUNK_BYTES,
        "column_names": ["tokens"],
        "column_encodings": [f"ndarray:{reader.dtype.name}"],
        "column_sizes": [None],
    }


def _read_samples(folder: Path, reader: SplitReader) -> Iterator[tuple[bytes, list[tuple[int, int]]]]:
    """Yield each shard's samples, and of each sample its tokens and the bytes of its head.

    Raises:
        ValueError: a shard is not what the index says, or a sample not what its offsets say.
    """
    index: Any = json.loads((folder / reader.split / "index.json").read_bytes())
    for entry in index["shards"]:
        path = folder / reader.split / entry["raw_data"]["basename"]
        data = path.read_bytes()
        config = {key: entry[key] for key in _describe_columns(reader)}
        chunk = Chunk.parse(data, json.dumps(config, sort_keys=True).encode())
        if len(chunk.sizes) != entry["samples"] or len(data) != entry["raw_data"]["bytes"]:
            raise ValueError(
                f"{path.name}: {plural(len(chunk.sizes), 'sample')} in {len(data)} bytes; index.json says {entry}"
            )
        body = chunk.body
        sizes: list[tuple[int, int]] = []
        position = 0
        for size in chunk.sizes:
            scale = body[position + 4] - 4
            length = int.from_bytes(body[position + 5 : position + 5 + (1 << scale)], "little")
            head = pack_mds_head(length, reader.dtype.itemsize)
            if body[position : position + len(head)] != head or len(head) + length * reader.dtype.itemsize != size:
                raise ValueError(f"{path.name}: the sample at byte {position} of the samples is not a row of ids")
            sizes.append((length, len(head)))
            position += size
        yield body, sizes
