"""The order of a trained tokenizer's ids: frequent entries have ids of small bytes.

Zstandard codes the low and the high byte of each token with one table, which pays off if few values of both are usual:
docs/lab/compression.md has the sizes. Merges keep their order, so that text becomes the same entries.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.tokenizer.sample import DOCUMENT_SEPARATOR

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

COUNTED_BYTES = 1 << 24
"""About how much text ids are counted in: to count in more makes no set smaller, as docs/lab/compression.md shows."""
_BLOCK_BYTES = 1 << 18
_OFFSET = 4
"""Measured: with 1 to 32, sizes of books, mathematics and code differ by 0.8 % at most."""


def order_by_frequency(tokenizer: str, size: int, sample_path: Path, *, first: int) -> list[int]:
    """Return a tokenizer's entries in a new order, in which those that its sample has most often have small bytes.

    The result depends on the tokenizer and the sample alone.

    Args:
        tokenizer: the text of a `tokenizer.json` without special tokens.
        size: entries of the tokenizer.
        sample_path: the sample; up to `COUNTED_BYTES` all documents count, else those of evenly spaced blocks.
        first: the new id of the first entry.

    Returns:
        The old id of each new one, from `first` on. Of equally frequent entries, the one with the smaller old id comes
        first in the order of bytes.
    """
    import gigatoken
    import numpy as np

    encoder: Any = gigatoken.Tokenizer.from_json(tokenizer)
    counts = np.zeros(size, np.int64)
    for documents in _iter_counted(sample_path):
        source = gigatoken.BytesSource(documents, separator=DOCUMENT_SEPARATOR)
        ids = encoder.encode_batch(source, parallel=False).layout.content.data
        counts += np.bincount(ids, minlength=size)
    entries = np.empty(size, np.int64)
    entries[_by_bytes(first, size) - first] = np.argsort(-counts, kind="stable")
    return entries.tolist()


def _by_bytes(first: int, size: int) -> npt.NDArray[np.int64]:
    """Return the ids from `first` on, those of small bytes first: by the product of all bytes, each plus `_OFFSET`."""
    import numpy as np

    ids = np.arange(first, first + size)
    bytes_of_ids = ids.astype("<u4").view(np.uint8).reshape(size, 4)
    return ids[np.argsort((bytes_of_ids.astype(np.int64) + _OFFSET).prod(axis=1), kind="stable")]


def _iter_counted(sample_path: Path) -> Iterator[bytes]:
    """Yield the documents that begin in each counted block of a sample file."""
    size = sample_path.stat().st_size
    if not size:
        return
    step = -(-size // COUNTED_BYTES)
    with sample_path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for block in range(0, size, step * _BLOCK_BYTES):
            begin, end = (_next_document(data, at) for at in (block, block + _BLOCK_BYTES))
            if begin < end:
                yield data[begin:end]


def _next_document(data: mmap.mmap, at: int) -> int:
    """Return where the first document begins from a byte on, or the sample ends."""
    return 0 if not at else data.find(DOCUMENT_SEPARATOR, at - 1) + 1 or len(data)
