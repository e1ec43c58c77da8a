"""A run: what encoding one unit leaves behind, its documents sorted by content hash.

`tokens.bin` holds the documents' tokens, EOS included, one after the other; `documents.npy` one row a document, in the
same order. Because runs are sorted, any range of hashes is one contiguous slice of both files. Rows are memory-mapped:
opening a run costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

TOKENS_FILE = "tokens.bin"
DOCUMENTS_FILE = "documents.npy"

DOCUMENT_DTYPE = np.dtype(
    [
        ("hash_hi", "<u8"),  # the first 8 bytes of the xxh3-128 digest, as a big-endian number
        ("hash_lo", "<u8"),  # the last 8
        ("start", "<u8"),  # first token in tokens.bin
        ("length", "<u4"),  # tokens, EOS included
        ("span", "<u4"),  # index of the unit's span
        ("row", "<u4"),  # row in the span
    ]
)

Key = tuple[int, int]
"""A content hash as (hash_hi, hash_lo): runs are sorted by it."""

FIRST_KEY: Key = (0, 0)
END_KEY: Key = (1 << 64, 0)
"""One past every hash."""


@dataclass(frozen=True)
class Run:
    """A finished run on disk."""

    folder: Path
    source: int
    labels: tuple[str, ...]
    """Provenance of each span: `file@revision#part`."""
    dtype: np.dtype

    @cached_property
    def documents(self) -> npt.NDArray[np.void]:
        """The document rows, `DOCUMENT_DTYPE (num_documents,)`, memory-mapped."""
        return np.load(self.folder / DOCUMENTS_FILE, mmap_mode="r")

    def position(self, key: Key) -> int:
        """Return the index of the first document whose hash is not below `key`."""
        hi, lo = key
        if hi >= 1 << 64:
            return len(self.documents)
        column = self.documents["hash_hi"]
        first = int(np.searchsorted(column, np.uint64(hi), "left"))
        last = int(np.searchsorted(column, np.uint64(hi), "right")) if lo else first
        return first + int(np.searchsorted(self.documents["hash_lo"][first:last], np.uint64(lo), "left"))

    def read_tokens(self, first: int, last: int) -> npt.NDArray[np.unsignedinteger]:
        """Read the tokens of the documents [first, last) in one sequential read.

        Returns:
            tokens: `dtype (num_tokens,)`.
        """
        if first >= last:
            return np.zeros(0, self.dtype)
        start = int(self.documents["start"][first])
        stop = int(self.documents["start"][last - 1]) + int(self.documents["length"][last - 1])
        size = self.dtype.itemsize
        return np.fromfile(self.folder / TOKENS_FILE, self.dtype, count=stop - start, offset=start * size)
