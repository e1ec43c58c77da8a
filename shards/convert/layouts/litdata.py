"""LitData: for each split a folder with `chunk-0-0.bin` ..., at most 64 MiB each, and `index.json`, for `TokensLoader`.

A chunk: uint32 documents n; uint32 offsets from the file's start (n + 1); the tokens end to end. `TokensLoader` serves
blocks of `block_size` tokens and leaves out what is left of each chunk after the last whole block, under one block in
64 MiB. The dtype is an index into LitData's table of numpy's scalar types: 5 is uint16, 6 is uint32. No time is
written (`updated_at` in LitData's own index): equal sets give equal exports.

Source: Lightning-AI/litData, streaming/writer.py's `_create_chunk`, item_loader.py's `TokensLoader`, constants.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.convert.layouts.chunks import MAX_CHUNK_BYTES, Chunk, find_long_document, iter_chunks
from shards.stores.files import atomic_open, write_text

if TYPE_CHECKING:
    from shards.convert.split_reader import Lengths, SplitReader, Tokens

USAGE = 'StreamingDataset("{out}/{split}", item_loader=TokensLoader(block_size=2049))'

_DATA_FORMATS = {2: "no_header_numpy:5", 4: "no_header_numpy:6"}


def find_export_obstacles(reader: SplitReader) -> list[str]:
    """Refuse a document that the uint32 offsets of LitData's chunks do not hold."""
    return find_long_document(reader, "LitData")


def write_split(folder: Path, reader: SplitReader) -> None:
    """Write a split's LitData chunks and their index."""
    (folder / reader.split).mkdir()
    chunks: list[dict[str, Any]] = []
    for index, chunk in enumerate(iter_chunks(reader, _no_head, overhead=8, limit=MAX_CHUNK_BYTES)):
        path = folder / reader.split / f"chunk-0-{index}.bin"
        with atomic_open(path) as file:
            file.write(chunk.pack_offsets())
            file.writelines(chunk.parts)
        tokens = sum(chunk.sizes) // reader.dtype.itemsize
        entry = {"chunk_bytes": path.stat().st_size, "chunk_size": len(chunk.sizes), "dim": tokens}
        chunks.append({**entry, "filename": path.name})
    index_text = json.dumps({"chunks": chunks, "config": _describe(reader)}, sort_keys=True)
    write_text(folder / reader.split / "index.json", index_text)


def read_tokens(folder: Path, reader: SplitReader) -> Iterator[Tokens]:
    """Read the tokens of LitData's chunks in order."""
    for chunk in _read_chunks(folder, reader):
        yield np.frombuffer(chunk.body, reader.dtype)


def read_lengths(folder: Path, reader: SplitReader) -> Iterator[Lengths]:
    """Yield document lengths from the offsets in LitData's chunks, in order."""
    for chunk in _read_chunks(folder, reader):
        yield np.array(chunk.sizes, np.int64) // reader.dtype.itemsize


def _no_head(length: int, token_bytes: int) -> bytes:
    del length, token_bytes
    return b""


def _describe(reader: SplitReader) -> dict[str, Any]:
    return {
        "chunk_bytes": MAX_CHUNK_BYTES,
        "chunk_size": None,
        "compression": None,
        "compression_batch_size": None,
        "compression_level": None,
        "data_format": [_DATA_FORMATS[reader.dtype.itemsize]],
        "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]',
        "encryption": None,
        "ipc_compression": None,
        "item_loader": "TokensLoader",
        "types": "json",
    }


def _read_chunks(folder: Path, reader: SplitReader) -> Iterator[Chunk]:
    """Yield the chunks.

    Raises:
        ValueError: a chunk is not what the index says.
    """
    index: Any = json.loads((folder / reader.split / "index.json").read_bytes())
    if index["config"] != _describe(reader):
        raise ValueError(f"index.json: config {index['config']}; expected {_describe(reader)}")
    for entry in index["chunks"]:
        data = (folder / reader.split / entry["filename"]).read_bytes()
        chunk = Chunk.parse(data)
        found = {"chunk_bytes": len(data), "chunk_size": len(chunk.sizes), "filename": entry["filename"]}
        found["dim"] = sum(chunk.sizes) // reader.dtype.itemsize
        if found != entry:
            raise ValueError(f"{entry['filename']}: holds {found}; index.json says {entry}")
        yield chunk
