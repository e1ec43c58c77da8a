"""LitData: for each split a folder with `chunk-0-0.bin` ..., at most 64 MiB each, and `index.json`, for `TokensLoader`.

A chunk: uint32 documents n; uint32 offsets from the file's start (n + 1); the tokens end to end. `TokensLoader` serves
blocks of `block_size` tokens and leaves out what is left of each chunk after the last whole block, under one block in
64 MiB. The dtype is an index into LitData's table of numpy's scalar types: 5 is uint16, 6 is uint32. No time is
written (`updated_at` in LitData's own index): equal sets give equal exports.

Source: Lightning-AI/litData, streaming/writer.py's `_create_chunk`, item_loader.py's `TokensLoader`, constants.py.
"""

from __future__ import annotations

import json
from typing import Any

from shards.convert.layouts import chunks
from shards.convert.layouts.layout import OpenFile
from shards.convert.split_reader import SplitReader

USAGE = 'StreamingDataset("{out}/{split}", item_loader=TokensLoader(block_size=2049))'

_DATA_FORMATS = {2: "no_header_numpy:5", 4: "no_header_numpy:6"}


def find_export_obstacles(reader: SplitReader) -> list[str]:
    """Refuse a document that the uint32 offsets of LitData's chunks do not hold."""
    return chunks.find_long_document(reader, "LitData")


def write_split(open_file: OpenFile, reader: SplitReader) -> None:
    """Write a split's LitData chunks and their index."""
    token_bytes = reader.dtype.itemsize
    written = [
        {"chunk_bytes": size, "chunk_size": len(items), "dim": sum(items) // token_bytes, "filename": name}
        for name, size, items in chunks.write_chunks(open_file, reader, "chunk-0-{}.bin")
    ]
    config: dict[str, Any] = {
        "chunk_bytes": chunks.MAX_CHUNK_BYTES,
        "chunk_size": None,
        "compression": None,
        "compression_batch_size": None,
        "compression_level": None,
        "data_format": [_DATA_FORMATS[token_bytes]],
        "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]',
        "encryption": None,
        "ipc_compression": None,
        "item_loader": "TokensLoader",
        "types": "json",
    }
    with open_file(f"{reader.split}/index.json") as file:
        file.write(json.dumps({"chunks": written, "config": config}, sort_keys=True).encode())
