"""Write and read `tokens.parquet`, the audit's counts: a row for each id of the vocabulary. A report reads it."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from shards.audit.id_checks import concentration
from shards.audit.totals import Totals
from shards.stores.files import atomic_open

TOKENS_FILE = "tokens.parquet"


def write_token_counts(path: Path, totals: Totals) -> None:
    """Write `tokens.parquet`: the counts, one row for each id, in order of ids.

    Columns: `id`, `bytes`, `text` (U+FFFD for bytes that are not UTF-8 alone), `special`; of training `count`,
    `documents` and `shards` that hold it, `document_bits` and `source_bits` (`id_checks.check_concentrated`); of
    validation `val_count`; and `count_SOURCE` of training for each source.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    vocabulary, entries = totals.vocabulary, list(totals.vocabulary.entries)
    document_bits, source_bits = concentration(totals.train)
    columns: dict[str, Any] = {
        "id": pa.array(np.arange(len(vocabulary), dtype=np.uint32)),
        "bytes": pa.array(entries, pa.binary()),
        "text": pa.array([entry.decode("utf-8", "replace") for entry in entries], pa.string()),
        "special": pa.array(vocabulary.special_mask()),
        "count": pa.array(totals.train.id_counts),
        "documents": pa.array(totals.train.documents),
        "shards": pa.array(totals.train.shards),
        "document_bits": pa.array(document_bits),
        "source_bits": pa.array(source_bits),
        "val_count": pa.array(totals.val.id_counts),
    }
    # A column for each source: a reader of Parquet reads only those that it asks for.
    for name, counts in zip(totals.source_names, totals.train.counts, strict=True):
        columns[f"count_{name}"] = pa.array(counts)
    with atomic_open(path) as file:
        pq.write_table(pa.table(columns), file, compression="zstd")


def read_values(path: Path, name: str) -> Any:
    """Return a column of `tokens.parquet` as an Arrow array."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return cast("Any", file.read(columns=[name], use_threads=False).column(name)).combine_chunks()
