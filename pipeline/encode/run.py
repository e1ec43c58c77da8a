"""A run: the encoded documents of one unit, sorted by content hash.

`tokens.bin` holds the documents' tokens, EOS included, one after the other; `documents.npy` holds one row per
document, in the same order. Because runs are sorted, any range of hashes is one contiguous slice of both files.
Opening a run reads its receipt; every range of the two files is compared with its checksums as it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.engine.receipts import TaskOutput

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
SEARCH_ROWS = 1 << 10
"""A binary search with at most this many rows left reads them all: they are in one or two blocks of checksums."""

HashKey = tuple[int, int]
"""A content hash as (hash_hi, hash_lo): runs are sorted by it."""

FIRST_HASH: HashKey = (0, 0)
END_HASH: HashKey = (1 << 64, 0)
"""One past every hash."""


@dataclass(frozen=True)
class Run:
    """A finished run on disk. It is plain data until it is read, so that a task's payload may hold it.

    Every read raises `WorkFileDamagedError` if the files are not as they were written.
    """

    folder: Path
    source: int
    dtype: np.dtype

    @cached_property
    def _output(self) -> TaskOutput:
        return TaskOutput(self.folder)

    @property
    def labels(self) -> list[str]:
        """Provenance of each span: `file@revision#part`."""
        return self._output.result["labels"]

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return self._output.result["documents"]

    def read_documents(self, first: int, last: int) -> npt.NDArray[np.void]:
        """Read the rows of the documents [first, last), `DOCUMENT_DTYPE (last - first,)`."""
        size = DOCUMENT_DTYPE.itemsize
        header = self._output.size(DOCUMENTS_FILE) - self.num_documents * size
        return np.frombuffer(
            self._output.read(DOCUMENTS_FILE, header + first * size, header + last * size), DOCUMENT_DTYPE
        )

    def position(self, key: HashKey) -> int:
        """Return the index of the first document whose hash is not below `key`."""
        first, last = 0, self.num_documents
        if key >= END_HASH:
            return last
        while last - first > SEARCH_ROWS:
            middle = (first + last) // 2
            row = self.read_documents(middle, middle + 1)[0]
            if (int(row["hash_hi"]), int(row["hash_lo"])) < key:
                first = middle + 1
            else:
                last = middle
        rows = self.read_documents(first, last)
        hi, lo = rows["hash_hi"], rows["hash_lo"]
        below = (hi < key[0]) | ((hi == key[0]) & (lo < key[1]))
        return first + int(np.count_nonzero(below))

    def partition_edges(self, bits: int) -> list[int]:
        """Return where each of `2**bits` equal parts of the hash space begins, then the number of documents."""
        hi = self.read_documents(0, self.num_documents)["hash_hi"]
        begins = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits) if bits else np.zeros(1, np.uint64)
        return [*np.searchsorted(hi, begins, "left").tolist(), self.num_documents]

    def read_tokens(self, rows: npt.NDArray[np.void]) -> npt.NDArray[np.unsignedinteger]:
        """Read the tokens of consecutive documents in one sequential read.

        Args:
            rows: consecutive rows from `read_documents`.

        Returns:
            tokens: `dtype (num_tokens,)`.
        """
        if not len(rows):
            return np.zeros(0, self.dtype)
        size = self.dtype.itemsize
        start, stop = int(rows["start"][0]), int(rows["start"][-1]) + int(rows["length"][-1])
        return np.frombuffer(self._output.read(TOKENS_FILE, start * size, stop * size), self.dtype)
