"""Parquet: one row per document, in `data/train-00000-of-00016.parquet` and on, one file per shard.

By these names `datasets.load_dataset` and the Hub's viewer find the splits of a folder that has no card. Columns:
`input_ids` list<uint16> or list<uint32>, EOS included; in a set with conversations `labels` list<int32>, the same ids
but -100 for those that are no targets, for models that shift labels themselves; `source`, `unit`, `row`, `hash` (hex)
of the document table; and `phase` in a set with phases, null in validation. A row group holds about 8 MB of tokens.

Source of the names: huggingface/datasets, `data_files.py`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shards.convert.layouts.layout import OpenFile, SplitReader
from shards.format.arrays import find_bounds
from shards.format.chat import NO_TARGET, find_targets
from shards.format.content_hash import read_column
from shards.format.document_table import read_lengths

if TYPE_CHECKING:
    import pyarrow as pa

    from shards.format.arrays import Tokens
    from shards.format.manifest import Manifest
    from shards.format.shard import DocumentBatch, Shard

USAGE = 'load_dataset("{out}", split="{split}")'

_COLUMNS = ["source", "unit", "row", "hash"]
"""Columns of the document table that go along."""


def write_split(open_file: OpenFile, reader: SplitReader) -> None:
    """Write a Parquet file per shard, and a row group for each block of documents."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            pa.field("input_ids", pa.list_(pa.from_numpy_dtype(reader.shard_set.dtype))),
            *([pa.field("labels", pa.list_(pa.int32()))] if reader.shard_set.manifest.chat else []),
            pa.field("source", pa.string()),
            pa.field("unit", pa.string()),
            pa.field("row", pa.uint32()),
            pa.field("hash", pa.string()),
            *([pa.field("phase", pa.string())] if reader.shard_set.manifest.phases else []),
        ]
    )
    for index, shard in enumerate(reader.shards):
        name = f"{reader.split}-{index:05d}-of-{len(reader.shards):05d}.parquet"
        with (
            open_file(f"data/{name}") as file,
            pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
        ):
            for tokens, batch in reader.iter_shard_documents(shard, [*_COLUMNS]):
                rows = _make_rows(tokens, batch, schema, shard, reader.shard_set.manifest)
                writer.write_batch(rows, row_group_size=batch.num_rows)


def _make_rows(
    tokens: Tokens, batch: DocumentBatch, schema: pa.Schema, shard: Shard, manifest: Manifest
) -> pa.RecordBatch:
    import pyarrow as pa

    # Lists over the block's tokens: offsets and values, no Python object per token.
    bounds = find_bounds(read_lengths(batch))
    offsets: Any = pa.array(bounds.astype(np.int32))
    columns = {name: batch.column(name) for name in _COLUMNS}
    if "phase" in schema.names:
        columns["phase"] = pa.repeat(pa.scalar(shard.entry.phase, pa.string()), batch.num_rows)
    columns["input_ids"] = pa.ListArray.from_arrays(offsets, pa.array(tokens))
    if "labels" in schema.names:
        labels = np.where(find_targets(manifest, tokens, bounds), tokens.astype(np.int32), NO_TARGET)
        columns["labels"] = pa.ListArray.from_arrays(offsets, pa.array(labels))
    # All digests as one text of hex digits, cut every 32.
    hexadecimal = read_column(batch.column("hash")).tobytes().hex().encode()
    places = np.arange(0, len(hexadecimal) + 1, 32, dtype=np.int32)
    columns["hash"] = pa.StringArray.from_buffers(batch.num_rows, pa.py_buffer(places.data), pa.py_buffer(hexadecimal))
    return pa.record_batch([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)
