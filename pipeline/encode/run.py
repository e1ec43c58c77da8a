"""A run: the encoded documents of one unit, sorted by content hash.

`tokens.bin` holds the documents' tokens, EOS included, one after the other; `documents.npy` holds one row per
document, in the same order. Because runs are sorted, any range of hashes is one contiguous slice of both files. If the
source is cleaned when the set is mixed, `measures.bin` holds each document's measures, again in that order. If the
recipe names evaluation sets, `hits.bin` holds where their n-grams occur, document by document.
Opening a run reads its receipt; every range of the files is compared with its checksums as it is read.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean.evaluations.hits import HIT_DTYPE
from pipeline.engine.checksums import write_checksummed
from pipeline.engine.receipts import TaskOutput, seal, unseal, write_receipt
from shards.errors import RunError
from shards.format.manifest import dtype_for
from shards.stores.files import unique_name
from shards.stores.open import open_store
from shards.stores.store import WritableStore

if TYPE_CHECKING:
    import numpy.typing as npt

TOKENS_FILE = "tokens.bin"
DOCUMENTS_FILE = "documents.npy"
MEASURES_FILE = "measures.bin"
HITS_FILE = "hits.bin"

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
MEASURES_DTYPE = np.dtype("<f4")
"""Of `measures.bin`, row-major `(documents, measures)`."""
SLACK = 6.0
"""Standard deviations by which a search reads further than it expects to need: it reads again once in a million."""
LEAST_SLACK = 64
"""Rows that a search reads further at least."""

CONNECTIONS = 32
"""Requests at once when runs are fetched from a remote store."""

HashKey = tuple[int, int]
"""A content hash as (hash_hi, hash_lo): runs are sorted by it."""

FIRST_HASH: HashKey = (0, 0)
END_HASH: HashKey = (1 << 64, 0)
"""One past every hash."""


def token_dtype(vocab_size: int) -> str:
    """Return the numpy dtype of a vocabulary's tokens, little-endian."""
    return "<u2" if dtype_for(vocab_size) == "uint16" else "<u4"


@dataclass(frozen=True)
class Run:
    """A finished run on disk. It is plain data until it is read, so that a task's payload may hold it.

    Every read raises `WorkFileDamagedError` if the files are not as they were written.
    """

    place: str
    """The address of the folder of the task that wrote it."""
    source: int
    dtype: str
    """Of the tokens: `<u2` or `<u4`."""

    @cached_property
    def output(self) -> TaskOutput:
        """The result and the files."""
        return TaskOutput(open_store(self.place))

    @property
    def digest(self) -> str:
        """The digest of the task that wrote it."""
        return self.place.rpartition("/")[2]

    @property
    def labels(self) -> list[str]:
        """Provenance of each span: `file@revision#part`."""
        return self.output.result["labels"]

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return self.output.result["documents"]

    @property
    def measures(self) -> list[str]:
        """Names of the measures of each document; none if the source is not cleaned when the set is mixed."""
        return self.output.result.get("measures", [])

    def read_measures(self, first: int, last: int) -> npt.NDArray[np.float32]:
        """Read the measures of the documents [first, last), float32 `(last - first, measures)`."""
        size = MEASURES_DTYPE.itemsize * len(self.measures)
        data = self.output.read(MEASURES_FILE, first * size, last * size)
        return np.frombuffer(data, MEASURES_DTYPE).reshape(last - first, len(self.measures))

    @property
    def tokens_bytes(self) -> int:
        """The bytes of its tokens."""
        return self.output.size(TOKENS_FILE)

    def read_hits(self) -> npt.NDArray[np.void]:
        """Read the hits of evaluation items in all documents, `HIT_DTYPE (hits,)`, in the documents' order."""
        return np.frombuffer(self.output.read(HITS_FILE), HIT_DTYPE)

    def read_documents(self, first: int, last: int) -> npt.NDArray[np.void]:
        """Read the rows of the documents [first, last), `DOCUMENT_DTYPE (last - first,)`."""
        size = DOCUMENT_DTYPE.itemsize
        header = self.output.size(DOCUMENTS_FILE) - self.num_documents * size
        return np.frombuffer(
            self.output.read(DOCUMENTS_FILE, header + first * size, header + last * size), DOCUMENT_DTYPE
        )

    def read_between(
        self, start: HashKey, stop: HashKey, *, first: int | None = None
    ) -> tuple[int, npt.NDArray[np.void]]:
        """Find and read the documents whose hashes are in [start, stop).

        Hashes are spread evenly, so their place is nearly known: a little more than the documents is read, once.

        Args:
            start: the lowest hash.
            stop: one past the highest.
            first: the index of the first such document, if it is known.

        Returns:
            The index of the first, and the rows, `DOCUMENT_DTYPE (found,)`.
        """
        slack = 1
        while True:
            begin = self._expect(start, -slack) if first is None else first
            end = max(begin, self._expect(stop, slack))
            rows = self.read_documents(begin, end)
            low = 0 if first is not None else count_below(rows, start)
            high = max(low, count_below(rows, stop))
            # A row outside on either side shows that there is none further on.
            if (first is not None or low or not begin) and (high < len(rows) or end == self.num_documents):
                return begin + low, rows[low:high]
            slack *= 4

    def _expect(self, key: HashKey, slack: int) -> int:
        """Return where a hash is if hashes are spread evenly, moved by `slack` times the usual error."""
        share = key[0] / END_HASH[0]
        error = SLACK * (self.num_documents * max(0.0, share * (1 - share))) ** 0.5 + LEAST_SLACK
        return min(self.num_documents, max(0, int(self.num_documents * share + slack * error)))

    def read_tokens(self, rows: npt.NDArray[np.void]) -> npt.NDArray[np.unsignedinteger]:
        """Read the tokens of consecutive documents in one sequential read.

        Args:
            rows: consecutive rows from `read_documents`.

        Returns:
            tokens: `dtype (num_tokens,)`.
        """
        if not len(rows):
            return np.zeros(0, self.dtype)
        size = np.dtype(self.dtype).itemsize
        start, stop = int(rows["start"][0]), int(rows["start"][-1]) + int(rows["length"][-1])
        return np.frombuffer(self.output.read(TOKENS_FILE, start * size, stop * size), self.dtype)


def count_below(rows: npt.NDArray[np.void], key: HashKey) -> int:
    """Return how many rows of a run, which are in hash order, have a hash below `key`."""
    if key >= END_HASH:
        return len(rows)
    hi = np.ascontiguousarray(rows["hash_hi"])
    first, last = (int(np.searchsorted(hi, np.uint64(key[0]), side)) for side in ("left", "right"))
    return first + int(np.searchsorted(rows["hash_lo"][first:last], np.uint64(key[1])))


class RunList:
    """Runs, and the file that lists them: the payloads of many tasks refer to it by its address."""

    def __init__(self, store: WritableStore, runs: list[Run]):
        """Choose the file's name, which no other build has. `write` writes it."""
        self.runs = runs
        self.name = f"runs-{unique_name()}.json"
        self.address = f"{store}/{self.name}"
        self._store = store
        self._written = False

    def write(self) -> None:
        """Write the file, unless that has been done."""
        if not self._written:
            self._store.put(self.name, seal([astuple(run) for run in self.runs]))
            self._written = True


@lru_cache(maxsize=1)
def load_runs(address: str) -> tuple[Run, ...]:
    """Return the runs of a `RunList`. A process reads the list once, and each run's receipt once.

    Raises:
        RunError: the list is damaged.
    """
    place, _, name = address.rpartition("/")
    try:
        return tuple(Run(*item) for item in unseal(open_store(place).read(name)))
    except (OSError, ValueError) as error:
        raise RunError(f"{address}: {error}. Run the same command again: the list is written anew.") from error


@contextmanager
def fetched_documents(runs: Sequence[Run], scratch: Path) -> Generator[list[Run]]:
    """Give runs whose files, but for the tokens, were fetched from a remote store into a temporary folder.

    A reader of many small ranges would wait for each: a request takes longer than its bytes. Scratch: 36 bytes a
    document, 4 for each of its measures, and the hits of evaluation items.
    """
    with TemporaryDirectory(dir=scratch) as folder:

        def fetch(number: int, run: Run) -> Run:
            own = Path(folder, str(number))
            own.mkdir()
            names = [name for name in run.output.result["files"] if name != TOKENS_FILE]
            files = {name: write_checksummed(own / name, run.output.read(name)) for name in names}
            write_receipt(own, {"documents": run.num_documents, "measures": run.measures, "files": files})
            return Run(str(own), run.source, run.dtype)

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            yield list(pool.map(fetch, range(len(runs)), runs))
