"""The evidence of a mix: for each document of the runs, why it is dropped, and the document or the items that decided.

`evidence.parquet` has the rows of the runs' document tables in another order: one row group for each partition of the
hash space that has documents, and in it run by run. So a shard, which is a range of hashes, needs neighbouring rows for
all its runs. The footer tells where each run's documents of a partition begin. Source, unit, row, hash and tokens are
in the runs, and not copied. `dropped` is the reason, as the manifest counts it, or null for a document that is kept.

If the mix looks for near-duplicates, `twin_run` and `twin_index` are the place of the document that stays, and
`jaccard` is their similarity: of documents that go, or would go. If it looks for test items, `items` has those that a
document holds. Size: less than a byte a document. Memory: one partition.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import base64
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.arrow_arrays import unwrap_mask, wrap_numbers, wrap_texts
from pipeline.encode.run import Run
from pipeline.engine.checksums import WrittenFile, checksum_file
from pipeline.engine.receipts import TaskOutput
from pipeline.sources.ranged_file import RangedFile
from shards.format.arrays import Bools, Int64s, Integers
from shards.stores.open import open_store
from shards.stores.store import Store

EVIDENCE_FILE = "evidence.parquet"
_EDGES = "edges"
_EDGES_DTYPE = np.dtype("<u8")


@dataclass(frozen=True)
class RowPlaces:
    """Where the documents of the runs are in partitions of the hash space, in each of which they are run by run."""

    edges: Integers
    """The index of each run's first document of each partition, `(partitions + 1, runs)`."""

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self.edges) - 1

    def sizes(self, number: int) -> Int64s:
        """Return how many documents each run has in a partition, `(runs,)`."""
        return (self.edges[number + 1] - self.edges[number]).astype(np.int64)

    def begins(self, number: int) -> Int64s:
        """Return the place of each run's first document in a partition, `(runs,)`."""
        sizes = self.sizes(number)
        return np.cumsum(sizes) - sizes

    def locate(self, number: int, places: Int64s) -> tuple[Int64s, Int64s]:
        """Return the runs of the documents at places of a partition, and their indexes in these."""
        run = np.searchsorted(np.cumsum(self.sizes(number)), places, "right")
        return run, places - self.begins(number)[run] + self.edges[number][run].astype(np.int64)

    def find(self, number: int, run: Integers, index: Integers) -> tuple[Int64s, Int64s]:
        """Find which of given documents are in a partition, and their places in it."""
        first, last = self.edges[number : number + 2, run].astype(np.int64)
        inside = np.flatnonzero((index >= first) & (index < last))
        return inside, (self.begins(number)[run] + index - first)[inside]


def write_evidence(
    folder: Path,
    places: RowPlaces,
    reasons: Sequence[str],
    read: Callable[[int], Integers],
    more: Callable[[int], dict[str, Any]],
) -> dict[str, WrittenFile]:
    """Write the evidence into a task's folder; return the file's entry for the receipt.

    Args:
        folder: the folder.
        places: where the documents are.
        reasons: of dropped documents, by their numbers from 1 on.
        read: returns the numbers of the reasons of a partition's documents; 0 for those that are kept.
        more: returns the other columns of a partition.
    """
    names = wrap_texts(pa.string(), [reason.encode() for reason in reasons])

    def tables() -> Iterator[pa.Table]:
        for number in range(places.partitions):
            codes = read(number)
            indices = wrap_numbers(pa.uint16(), (codes - 1).astype(np.uint16), codes > 0)
            yield pa.table({"dropped": pa.DictionaryArray.from_arrays(indices, names)} | more(number))

    own = tables()
    first = next(own)
    with pq.ParquetWriter(folder / EVIDENCE_FILE, first.schema, compression="zstd") as file:
        for table in itertools.chain([first], own):
            if len(table):
                file.write_table(table, row_group_size=len(table))
        edges = places.edges.astype(_EDGES_DTYPE).tobytes()
        file.add_key_value_metadata({_EDGES: base64.b64encode(edges).decode()})
    return {EVIDENCE_FILE: checksum_file(folder / EVIDENCE_FILE)}


class Evidence:
    """The evidence of a mix. Memory: the partition that is read, and for `kept` a byte a document of two partitions."""

    def __init__(self, output: TaskOutput[Any], runs: int):
        """Read the footer of the evidence's file.

        Args:
            output: of the mix task.
            runs: how many runs it read.

        Raises:
            WorkFileDamagedError: the file is absent or damaged; reading it may raise that, too.
        """
        file: Any = _TaskFile(output, EVIDENCE_FILE)
        self._file = pq.ParquetFile(file, read_dictionary=["dropped"])
        about: Any = self._file.metadata.metadata
        edges = base64.b64decode(about[_EDGES.encode()])
        self.places = RowPlaces(np.frombuffer(edges, _EDGES_DTYPE).reshape(-1, runs))
        self._sizes = np.array([self.places.sizes(number).sum() for number in range(self.places.partitions)])
        self._groups = np.cumsum(self._sizes > 0) - 1
        """The row group of each partition: those without documents have none."""
        self._kept = lru_cache(maxsize=2)(self._read_kept)  # a shard is in one partition, or in two
        self._loading = threading.Lock()
        self._row = lru_cache(maxsize=1)(self.read)  # copies of one document are in one partition

    def read(self, number: int, columns: tuple[str, ...] | None = None) -> pa.Table:
        """Read the rows of a partition, or some of their columns."""
        if not self._sizes[number]:
            return self._file.schema_arrow.empty_table()
        return self._file.read_row_group(int(self._groups[number]), list(columns) if columns else None)

    def kept(self, run: int, first: int, last: int) -> Bools:
        """Return which of the documents [first, last) of a run are kept, bool `(last - first,)`."""
        edges = self.places.edges[:, run]
        begin, end = int(edges.searchsorted(first, "right")) - 1, int(edges.searchsorted(last))
        parts = [np.zeros(0, bool)]
        # A run's documents of a partition follow each other in its rows.
        for number in range(begin, end):
            low, high = max(first, int(edges[number])), min(last, int(edges[number + 1]))
            start = int(self.places.begins(number)[run]) + low - int(edges[number])
            # Threads that fetch for one task mostly want the same partition, which is read once.
            with self._loading:
                kept = self._kept(number)
            parts.append(kept[start : start + high - low])
        return np.concatenate(parts)

    def _read_kept(self, number: int) -> Bools:
        """Return which of the documents of a partition are kept."""
        dropped = self.read(number, ("dropped",))["dropped"].combine_chunks()
        return unwrap_mask(dropped.is_null())

    def of(self, run: int, index: int) -> dict[str, Any]:
        """Return the row of the document at an index of a run."""
        number = int(self.places.edges[:, run].searchsorted(index, "right")) - 1
        _, (place,) = self.places.find(number, np.array([run]), np.array([index]))
        return self._row(number).slice(place, 1).to_pylist()[0]

    def draw(
        self, runs: Sequence[Run], source: int, choose: Callable[[pa.Table], Bools], most: int
    ) -> list[tuple[int, int, dict[str, Any]]]:
        """Return evidence of some documents of a source: of the chosen those with the lowest hashes, a random draw.

        Args:
            runs: all runs of the mix.
            source: the source's number.
            choose: returns which rows of a partition are chosen.
            most: at most so many.

        Returns:
            The run, the index in it and the row of each, in the order of hashes.
        """
        of_source = np.array([run.source == source for run in runs])
        found: list[tuple[int, int, dict[str, Any]]] = []
        # Partitions are in the order of hashes.
        for number in range(self.places.partitions):
            if len(found) >= most:
                break
            table = self.read(number)
            own = np.flatnonzero(choose(table) & np.repeat(of_source, self.places.sizes(number)))
            run, index = self.places.locate(number, own)
            # So is each run: only its first documents can be among the first.
            near = np.flatnonzero(np.arange(len(run)) - run.searchsorted(run) < most)
            places = [(int(run[at]), int(index[at]), int(own[at])) for at in near]
            places.sort(key=lambda one: runs[one[0]].hash_key(one[1]))
            rows = [table.slice(place, 1).to_pylist()[0] for _, _, place in places[: most - len(found)]]
            found += [(run, index, row) for (run, index, _), row in zip(places, rows, strict=False)]
        return found


def find_reasons(rows: pa.Table, wants: Callable[[str], bool]) -> Bools:
    """Return which rows of the evidence are of documents that are dropped for one of the wanted reasons."""
    dropped: Any = rows["dropped"].combine_chunks()
    names = dropped.dictionary.to_pylist()
    codes = dropped.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
    return np.array([*map(wants, names), False], bool)[codes]


class _TaskFile(RangedFile):
    """A file of a finished task; each range that is read is compared with its checksums."""

    def __init__(self, output: TaskOutput[Any], name: str):
        super().__init__(output.size(name))
        self._output, self._name = output, name

    def take(self, start: int, stop: int) -> bytes:
        return bytes(self._output.read(self._name, start, stop))


def read_evidence(store: Store, runs: int) -> Evidence:
    """Open the evidence that the mix of this many runs wrote into a task's folder.

    From a store with costly requests, a process opens it once for all its tasks, and again after another attempt.
    """
    output = TaskOutput(store)
    return _open_remote(str(store), runs, output.result.folder) if store.request_bytes else Evidence(output, runs)


@lru_cache(maxsize=1)
def _open_remote(place: str, runs: int, _attempt: str) -> Evidence:
    return Evidence(TaskOutput(open_store(place)), runs)
