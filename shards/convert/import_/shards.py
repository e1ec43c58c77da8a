"""An imported split's shards: cut to about equal size at document boundaries, with a document table for each.

Memory: a block of tokens and the shard's document table.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shards.convert.import_ import bin_files
from shards.convert.import_.imported_documents import SOURCE, ImportedDocuments
from shards.format.arrays import TOKEN_DTYPES, Int64s, Rows
from shards.format.document_blocks import cut_blocks
from shards.format.document_table import document_schema
from shards.format.manifest import ShardEntry, Split
from shards.format.writer import SetProperties, write_shard
from shards.terminal.reporter import Advance

if TYPE_CHECKING:
    import pyarrow as pa


def document_rows(documents: ImportedDocuments, numbers: Int64s) -> pa.Table:
    """Return the document table of a shard.

    Args:
        documents: the documents of the split, in the files' order.
        numbers: the documents that the shard holds, in this order.
    """
    import pyarrow as pa

    # The file in which a document begins is its unit; its row counts the documents that begin there.
    stream, lengths = documents.stream, documents.lengths[numbers]
    begins = documents.ends - documents.lengths
    units = np.searchsorted(stream.starts, begins[numbers], side="right") - 1
    first_of_unit = np.searchsorted(begins, stream.starts)
    names = [f"{b.path.name}@{d[:16]}" for b, d in zip(stream.bins, stream.digests, strict=True)]
    columns: list[Any] = [
        pa.array((np.cumsum(lengths) - lengths).astype(np.uint64)),
        pa.array(lengths.astype(np.uint32)),
        _encode(np.zeros(len(numbers), np.int64), [SOURCE]),
        _encode(units, names),
        pa.array((numbers - first_of_unit[units]).astype(np.uint32)),
        pa.Array.from_buffers(pa.binary(16), len(numbers), [None, pa.py_buffer(documents.hashes[numbers].tobytes())]),
    ]
    return pa.Table.from_arrays(columns, schema=document_schema())


def _encode(codes: Int64s, names: list[str]) -> Any:
    """Return names by their codes as a dictionary column."""
    import pyarrow as pa

    indices = cast("Any", pa.array(codes.astype(np.int32)))
    return cast("Any", pa.DictionaryArray).from_arrays(indices, pa.array(names))


def write_split(
    folder: Path,
    split: Split,
    documents: ImportedDocuments,
    properties: SetProperties,
    *,
    shard_tokens: int,
    advance: Advance,
) -> list[ShardEntry]:
    """Write an imported split in shards of about equal size, in the files' order."""
    numbers = np.flatnonzero(documents.keep).astype(np.int64)
    dtype = TOKEN_DTYPES[properties.dtype]
    entries: list[ShardEntry] = []
    first = 0
    for index, last in enumerate(cut_shards(np.cumsum(documents.lengths[numbers]), shard_tokens)):
        here = numbers[first:last]
        tokens = _iter_tokens(documents, here, advance)
        entries.append(
            write_shard(
                folder,
                split=split,
                index=index,
                properties=properties,
                chunks=(np.ascontiguousarray(part, dtype).data for part in tokens),
                documents=document_rows(documents, here),
            )
        )
        first = last
    return entries


def _iter_tokens(documents: ImportedDocuments, numbers: Int64s, advance: Advance) -> Iterator[Rows]:
    """Yield the tokens of documents, which are all that are kept between the first and the last of them."""
    low, high = int(numbers[0]), int(numbers[-1]) + 1
    ends, lengths = documents.ends[low:high], documents.lengths[low:high]
    # Blocks of whole documents; of those that were dropped, the tokens are left out.
    base = int(ends[0] - lengths[0])
    for first, last in cut_blocks(ends - base, bin_files.IMPORT_BLOCK_TOKENS):
        start = int(ends[first] - lengths[first])
        tokens = documents.stream.read(start, int(ends[last - 1]))
        here = documents.keep[low + first : low + last]
        kept = tokens if here.all() else tokens[np.repeat(here, lengths[first:last])]
        yield kept
        advance(len(kept))


def cut_shards(ends: Int64s, shard_tokens: int) -> list[int]:
    """Cut imported documents into shards of equal targets, each at the nearest boundary (FORMAT.md, The mix).

    Args:
        ends: one past each document's last token.
        shard_tokens: tokens of a shard, about; there are fewer shards if one would hold no document.

    Returns:
        One past each shard's last document.
    """
    total = int(ends[-1])
    number = max(1, min(round(total / shard_tokens), len(ends)))
    bounds = np.concatenate([[0], ends])
    while True:
        # Each cut at the boundary nearest to its target, the lower one of a tie.
        targets = np.array([total * (k + 1) // number for k in range(number)], np.int64)
        after = np.searchsorted(bounds, targets)
        before = np.maximum(after - 1, 0)
        cuts = np.where(targets - bounds[before] <= bounds[after] - targets, before, after)
        if cuts[0] > 0 and (np.diff(cuts) > 0).all() and cuts[-1] == len(ends):
            return cuts.tolist()
        # A shard would hold no document: try with one shard less.
        number -= 1
