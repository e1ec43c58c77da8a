"""A run: the encoded documents of one unit, sorted by content hash, with their measures and hits; lists of runs.

`tokens.bin` holds the documents' tokens, EOS included, one after the other; `documents.npy` holds one row per
document, in the same order. Because runs are sorted, any range of hashes is one contiguous slice of both files. If the
source is cleaned when the set is mixed, `measures.bin` holds each document's measures, again in that order. If the
recipe names evaluation sets, `hits.bin` holds where their n-grams occur, document by document.
The list of runs repeats the runs' receipts. Each range that is read from a file is compared with its checksums.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np

from pipeline.clean.decontamination.hits import HIT_DTYPE
from pipeline.engine.checksums import WrittenFile, seal, unseal, write_checksummed
from pipeline.engine.receipts import Result, TaskOutput, damage_found, write_receipt
from pipeline.engine.tasks import InDigest, digest_of, last_part
from shards.format.arrays import Float32s, Int64s, Rows, Tokens
from shards.format.manifest import dtype_for
from shards.format.vocabulary import Vocabulary
from shards.stores.open import open_store
from shards.stores.store import WritableStore
from shards.terminal.workers import map_in_threads

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

MOST_KEPT_ROWS_BYTES = 64 << 20
"""Rows of all runs in a remote store which a process keeps in memory: those of 1.8 million documents."""

HashKey = tuple[int, int]
"""A content hash as (hash_hi, hash_lo): runs are sorted by it."""

FIRST_HASH: HashKey = (0, 0)
END_HASH: HashKey = (1 << 64, 0)
"""One past every hash."""


RunsAddress = Annotated[str, InDigest(last_part, "after.encode")]
"""The address of the list of runs, of a `RunList`, or of the folder of one, in a task's payload."""


def token_dtype(vocab_size: int) -> str:
    """Return the numpy dtype of a run's tokens, little-endian, for a vocabulary of a size."""
    return "<u2" if dtype_for(vocab_size) == "uint16" else "<u4"


@dataclass(slots=True, kw_only=True)
class RunResult(Result):
    """What the readers of a run need of the result of its task."""

    labels: list[str] = field(default_factory=list[str])
    """Provenance of each span: `file@revision#part`."""
    documents: int
    measures: list[str] = field(default_factory=list[str])
    """Names of the measures of each document; none if the source is not cleaned when the set is mixed."""

    def outline(self) -> RunResult:
        """Return a run's result alone, without what only the task's stage needs."""
        files = {name: WrittenFile(file.bytes, checksums_at=file.checksums_at) for name, file in self.files.items()}
        return RunResult(
            files=files,
            folder=self.folder,
            labels=self.labels,
            documents=self.documents,
            measures=self.measures,
        )


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
    result: RunResult | None = field(default=None, repr=False, compare=False)
    """The task's result, if it is known: else the receipt is read."""
    keeps_rows: bool = field(default=False, repr=False, compare=False)
    """Whether its rows are read whole, once, and kept in memory."""

    @cached_property
    def output(self) -> TaskOutput[RunResult]:
        """The result and the files of the task."""
        return TaskOutput(open_store(self.place), RunResult, self.result)

    @property
    def digest(self) -> str:
        """The digest of the task that wrote the run."""
        return self.place.rpartition("/")[2]

    @property
    def labels(self) -> list[str]:
        """Provenance of each span: `file@revision#part`."""
        return self.output.result.labels

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return self.output.result.documents

    @property
    def measures(self) -> list[str]:
        """Names of the measures of each document; none if the source is not cleaned in the mix."""
        return self.output.result.measures

    def read_measures(self, first: int, last: int) -> Float32s:
        """Read the measures of documents [first, last), float32 `(last - first, measures)`."""
        size = len(self.measures)
        return self.output.read_rows(MEASURES_FILE, MEASURES_DTYPE, first * size, last * size).reshape(-1, size)

    def read_measure(self, index: int, name: str) -> float:
        """Read one measure of the document at an index."""
        return float(self.read_measures(index, index + 1)[0, self.measures.index(name)])

    def describe(self, index: int) -> dict[str, Any]:
        """Return where the document at an index comes from (`place`, `row`), its `hash` and its `tokens`."""
        (row,) = self.read_documents(index, index + 1)
        return {
            "place": self.labels[int(row["span"])],
            "row": int(row["row"]),
            "hash": f"{row['hash_hi']:016x}{row['hash_lo']:016x}",
            "tokens": int(row["length"]),
        }

    @property
    def tokens_bytes(self) -> int:
        """The bytes of all tokens."""
        return self.output.size(TOKENS_FILE)

    @property
    def num_hits(self) -> int:
        """The number of hits of evaluation items."""
        return self.output.size(HITS_FILE) // HIT_DTYPE.itemsize

    def read_hits(self) -> Rows:
        """Read the hits of evaluation items, `HIT_DTYPE (hits,)`, in the documents' order."""
        return self.output.read_rows(HITS_FILE, HIT_DTYPE)

    def read_documents(self, first: int, last: int) -> Rows:
        """Read the rows of documents [first, last), `DOCUMENT_DTYPE (last - first,)`."""
        if self.keeps_rows:
            return self._rows[first:last]
        return self._read_rows(first, last)

    def hash_key(self, index: int) -> HashKey:
        """Return the content hash of the document at an index."""
        (row,) = self.read_documents(index, index + 1)
        return int(row["hash_hi"]), int(row["hash_lo"])

    @cached_property
    def _rows(self) -> Rows:
        return self._read_rows(0, self.num_documents)

    def _read_rows(self, first: int, last: int) -> Rows:
        size = DOCUMENT_DTYPE.itemsize
        header = self.output.size(DOCUMENTS_FILE) - self.num_documents * size
        return np.frombuffer(
            self.output.read(DOCUMENTS_FILE, header + first * size, header + last * size), DOCUMENT_DTYPE
        )

    def read_between(self, start: HashKey, stop: HashKey) -> tuple[int, Rows]:
        """Find and read the documents whose hashes are in [start, stop).

        Hashes are spread evenly, so their place is nearly known: a little more than the documents is read, once.

        Returns:
            The index of the first, and the rows, `DOCUMENT_DTYPE (found,)`.
        """
        # Read around the expected place, and further if the rows that were read do not hold both edges.
        slack, number = 1, self.num_documents
        while True:
            begin = _expect_place(start, number, -slack)
            end = max(begin, _expect_place(stop, number, slack))
            rows = self.read_documents(begin, end)
            low, high = count_below(rows, [start, stop]).tolist()
            high = max(low, high)
            # A row outside on either side shows that there is none further on.
            if (low or not begin) and (high < len(rows) or end == number):
                return begin + low, rows[low:high]
            slack *= 4

    def read_tokens(self, rows: Rows) -> Tokens:
        """Read the tokens of consecutive documents in one sequential read.

        Args:
            rows: consecutive rows from `read_documents`; at least one.

        Returns:
            tokens: `dtype (num_tokens,)`.
        """
        return np.frombuffer(self.output.read(TOKENS_FILE, *self.token_range(rows)), self.dtype)

    def token_range(self, rows: Rows) -> tuple[int, int]:
        """Return the range of bytes in the file of tokens of the documents from the first row to the last."""
        size = np.dtype(self.dtype).itemsize
        return int(rows["start"][0]) * size, (int(rows["start"][-1]) + int(rows["length"][-1])) * size


def _expect_place(key: HashKey, number: int, slack: int) -> int:
    """Return about where in a run a hash is, from its number of documents; `slack` moves it by usual errors."""
    share = key[0] / END_HASH[0]
    error = SLACK * (number * max(0.0, share * (1 - share))) ** 0.5 + LEAST_SLACK
    return min(number, max(0, int(number * share + slack * error)))


def count_below(rows: Rows, keys: Sequence[HashKey]) -> Int64s:
    """Return how many of a run's rows, in hash order, have a hash below each of some hashes, `(keys,)`."""
    # By the first half of the hash; the second half decides among rows that share it.
    hi = np.ascontiguousarray(rows["hash_hi"])
    firsts = np.array([min(first, END_HASH[0] - 1) for first, _ in keys], np.uint64)
    counts = hi.searchsorted(firsts)
    ends = hi.searchsorted(firsts, "right")
    for i, key in enumerate(keys):
        if key >= END_HASH:
            counts[i] = len(rows)
        elif counts[i] != ends[i]:
            counts[i] += np.searchsorted(rows["hash_lo"][counts[i] : ends[i]], np.uint64(key[1]))
    return counts


class RunList:
    """Runs, and the file that lists them: the payloads of many tasks refer to it by its address."""

    def __init__(self, store: WritableStore, runs: list[Run]):
        """Choose the name of the list of runs, from them and their sources: it counts in digests. `write` writes it."""
        self.runs = runs
        # Processes keep what they have read: a list with the files of other attempts is in another folder.
        self.folder = f"runs-{digest_of([run.result and run.result.folder for run in runs])}"
        self.name = f"{self.folder}/runs-{digest_of([(run.source, run.digest) for run in runs])}.json"
        self.address = f"{store}/{self.name}"
        self._store = store
        self._written = False

    def write(self) -> None:
        """Write the list, unless that has been done."""
        if not self._written:
            runs = tuple(replace(run, result=run.result and run.result.outline()) for run in self.runs)
            self._store.put(self.name, seal(runs, tuple[Run, ...]))
            self._written = True


@lru_cache(maxsize=1)
def load_runs(address: str) -> tuple[Run, ...]:
    """Return the runs of a `RunList`. A process reads the list once, and their rows, if a few requests get them all.

    Raises:
        WorkFileDamagedError: the list is damaged.
    """
    place, _, name = address.rpartition("/")
    store = open_store(place)
    with damage_found(store, name):
        runs: tuple[Run, ...] = unseal(store.read(name), tuple[Run, ...])
    rows_bytes = sum(run.num_documents for run in runs) * DOCUMENT_DTYPE.itemsize if store.request_bytes else 0
    return tuple(replace(run, keeps_rows=0 < rows_bytes <= MOST_KEPT_ROWS_BYTES) for run in runs)


@contextmanager
def runs_in_scratch(runs: Sequence[Run], scratch: Path) -> Generator[list[Run]]:
    """Give runs whose files, except tokens, are in scratch: fetched from a remote store.

    A reader of many small ranges would wait for each: a request takes longer than its bytes. Scratch: 36 bytes a
    document, 4 for each of its measures, and the hits of evaluation items.
    """
    with TemporaryDirectory(dir=scratch) as folder:

        def fetch(number: int) -> Run:
            run = runs[number]
            own = Path(folder, str(number))
            own.mkdir()
            output = replace(run).output  # the checksums that it keeps end with it
            names = [name for name in output.result.files if name != TOKENS_FILE]
            files = {name: write_checksummed(own / name, output.read(name)) for name in names}
            write_receipt(own, RunResult(documents=run.num_documents, measures=run.measures, files=files))
            return Run(str(own), run.source, run.dtype)

        yield map_in_threads(fetch, range(len(runs)), CONNECTIONS)


def distinct_runs(runs: Sequence[Run]) -> list[Run]:
    """Return each run once of a list: sources that read the same files in the same way share runs."""
    return list({run.digest: run for run in runs}.values())


def read_run_text(run: Run, index: int, vocabulary: Vocabulary) -> bytes:
    """Return a document's text, from the tokens of its run and the vocabulary, which knows BOS.

    Raises:
        WorkFileDamagedError: the run's files are not as they were written.
    """
    row = run.read_documents(index, index + 1).copy()
    row["length"] -= 1  # without EOS
    return vocabulary.decode_document(run.read_tokens(row))
