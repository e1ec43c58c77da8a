"""The order of a trained tokenizer's ids: frequent entries first.

In shards, frequent ids then share their high byte, which Zstandard uses: docs/performance.md has the sizes. Merges keep
their order, so that text becomes the same entries.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.tokenizer.sample import DOCUMENT_SEPARATOR

COUNTED_BYTES = 1 << 24
"""About how much text ids are counted in: to count in more makes no set smaller, as docs/performance.md shows."""
_BLOCK_BYTES = 1 << 18


def order_by_frequency(tokenizer: str, size: int, sample_path: Path) -> list[int]:
    """Return a tokenizer's ids, those first that occur most often in the tokens of its sample.

    The result depends on the tokenizer and the sample alone.

    Args:
        tokenizer: the text of a `tokenizer.json` without special tokens.
        size: entries of the tokenizer.
        sample_path: the sample; up to `COUNTED_BYTES` all documents count, else those of evenly spaced blocks.

    Returns:
        The ids; of equally frequent ones, the smaller one first.
    """
    import gigatoken
    import numpy as np

    encoder: Any = gigatoken.Tokenizer.from_json(tokenizer)
    counts = np.zeros(size, np.int64)
    for documents in _iter_counted(sample_path):
        source = gigatoken.BytesSource(documents, separator=DOCUMENT_SEPARATOR)
        ids = encoder.encode_batch(source, parallel=False).layout.content.data
        counts += np.bincount(ids, minlength=size)
    return np.argsort(-counts, kind="stable").tolist()


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
