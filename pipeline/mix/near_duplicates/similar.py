"""The similar stage: the exact Jaccard similarity of each candidate pair, from the shingles of its documents.

A task takes the pairs of some partitions, each once, and reads the documents batch by batch. Memory: up to 350 bytes a
pair of its partitions (measured with two documents of its own for each), and one batch of tokens with 8 bytes for each
word, or one pair of longer documents.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from pipeline.arrow_arrays import split_by_size, spread
from pipeline.encode.run import CONNECTIONS, DOCUMENT_DTYPE, Run, RunsAddress, distinct_runs, load_runs
from pipeline.engine.checksums import BLOCK_BYTES, ChecksummedWriter
from pipeline.engine.receipts import Result, TaskOutput
from pipeline.engine.tasks import NOT_IN_DIGEST, NUMBER, InDigest, Payload, Report
from pipeline.mix.near_duplicates.bands import Tokenizer
from pipeline.mix.near_duplicates.normal_text import hash_shingles, load_entries
from pipeline.mix.near_duplicates.pairs import PARTITIONS, PairsTask, distinct_pairs, pairs_digest, read_pairs
from shards.format.arrays import Int64s, Rows, Tokens, UInt64s
from shards.stores.open import open_store
from shards.stores.store import Store
from shards.terminal.workers import map_in_threads

FLOOR = 0.5
"""The lowest similarity that is written: `min_jaccard` may move above it, and nothing is compared again."""
TASK_PAIRS = 1 << 22
"""Pairs of a task, repeated ones included, as far as there are partitions."""
BATCH_TOKENS = 1 << 22
"""Tokens of the pairs whose shingles are in memory at once; a document counts for each of its pairs."""

READ_BYTES = 8 << 20
"""Documents of a run that are this far apart are read one after the other."""

SIMILAR_FILE = "similar.bin"
SIMILAR_DTYPE = np.dtype(
    [
        ("hi_a", "<u8"),  # the content hash of the longer document, as in `DOCUMENT_DTYPE`
        ("lo_a", "<u8"),
        ("hi_b", "<u8"),
        ("lo_b", "<u8"),
        ("jaccard", "<f8"),
        ("length_a", "<u4"),  # tokens, EOS included
        ("length_b", "<u4"),
        ("characters_a", "<u4"),  # of their words, at most 2^32 - 1
        ("characters_b", "<u4"),
    ]
)


@dataclass(frozen=True, slots=True)
class SimilarTask(Payload):
    """The input of one similar task; plain data."""

    CODE: ClassVar = (1, PairsTask.CODE)

    runs: RunsAddress
    """The address of the list of runs, of a `RunList`."""
    pairs: Annotated[str, NOT_IN_DIGEST]
    """The address of the pairs stage."""
    ranges: int
    """The number of pairs tasks."""
    number: Annotated[int, InDigest(called=NUMBER)]
    """The number of this task."""
    tasks: int
    """How many tasks there are; a power of two."""
    tokenizer: Tokenizer


def count_similar_tasks(pairs: int, runs: int) -> int:
    """Return how many similar tasks compare this many pairs, a power of two.

    Two at least, unless there is one run: worker processes have loaded the compiled code, and the build has not.
    """
    wanted = max(-(-pairs // TASK_PAIRS), min(runs, 2))
    return min(PARTITIONS, 1 << max(0, wanted - 1).bit_length())


def compare_pairs(folder: Path, task: SimilarTask, report: Report) -> Result:
    """Write the pairs with a Jaccard similarity of at least `FLOOR`.

    Args:
        folder: an empty folder.
        task: the pairs and the runs.
        report: called with (bytes of pairs, tokens compared) done so far.
    """
    # The candidate pairs of this task's partitions, from all ranges of keys.
    runs = distinct_runs(load_runs(task.runs))
    step = PARTITIONS // task.tasks
    begin = task.number * step
    stores = [open_store(f"{task.pairs}/{pairs_digest(task.runs, place, task.ranges)}") for place in range(task.ranges)]
    pairs = distinct_pairs(np.concatenate([read_pairs(store, begin, begin + step) for store in stores]))
    # Read and compare batch by batch: pairs of one document follow each other.
    documents = _Documents(runs, np.unique(np.concatenate([pairs["longer"], pairs["shorter"]])), task.tokenizer)
    longer, shorter = documents.find(pairs["longer"]), documents.find(pairs["shorter"])
    lengths = documents.rows["length"].astype(np.int64)
    tokens = 0
    with ChecksummedWriter(folder / SIMILAR_FILE) as file:
        for first, last in split_by_size(lengths[longer] + lengths[shorter], BATCH_TOKENS):
            sets = documents.read_shingles(np.unique(np.concatenate([longer[first:last], shorter[first:last]])))
            tokens += sum(map(len, sets.values()))
            found = _compare(longer[first:last], shorter[first:last], sets, documents)
            file.write(found.view(np.uint8).data)
            report(last * pairs.dtype.itemsize, tokens)
    return Result(files={SIMILAR_FILE: file.facts()})


def _compare(
    longer: Int64s,
    shorter: Int64s,
    sets: dict[int, UInt64s],
    documents: _Documents,
) -> Rows:
    """Return the pairs with a similarity of at least `FLOOR`, `SIMILAR_DTYPE (similar,)`."""
    values = [jaccard(sets[a], sets[b]) for a, b in zip(longer.tolist(), shorter.tolist(), strict=True)]
    found = np.array(values, np.float64)
    # Keep what some `min_jaccard` may ask for.
    chosen = np.flatnonzero(found >= FLOOR)
    similar = np.zeros(len(chosen), SIMILAR_DTYPE)
    similar["jaccard"] = found[chosen]
    for letter, document in (("a", longer[chosen]), ("b", shorter[chosen])):
        rows = documents.rows[document]
        for name, column in (("hi", "hash_hi"), ("lo", "hash_lo"), ("length", "length")):
            similar[f"{name}_{letter}"] = rows[column]
        similar[f"characters_{letter}"] = np.minimum(documents.characters[document], 2**32 - 1)
    return similar


def jaccard(first: UInt64s, second: UInt64s) -> float:
    """Return the Jaccard similarity of two sorted sets; 0 if their sizes alone keep it below `FLOOR`."""
    if min(len(first), len(second)) < FLOOR * max(len(first), len(second)):
        return 0.0
    both = np.concatenate([first, second])
    both.sort(kind="stable")  # merges the two
    common = int((both[1:] == both[:-1]).sum())
    return common / (len(both) - common)


class _Documents:
    """The documents of a task's pairs, in the order of their numbers."""

    def __init__(self, runs: list[Run], numbers: UInt64s, tokenizer: Tokenizer):
        self._runs = runs
        self._numbers = numbers
        self._entries = load_entries(*tokenizer)
        self.characters = np.zeros(len(numbers), np.int64)
        """Of the words of each that was read."""
        self._own = (numbers >> np.uint64(32)).astype(np.int64)
        self._token_bytes = np.dtype(runs[0].dtype).itemsize if runs else 0
        self._threads = CONNECTIONS if runs and runs[0].output.store.request_bytes else 1
        # Read the rows of each run in few pieces; numbers are in the order of runs and rows.
        index = (numbers & np.uint64(2**32 - 1)).astype(np.int64)
        parts = _split(self._own, index, index + 1, DOCUMENT_DTYPE.itemsize)
        self.rows = np.empty(len(numbers), DOCUMENT_DTYPE)

        def read(part: slice) -> None:
            places = index[part]
            first = int(places[0])
            rows = runs[self._own[part.start]].read_documents(first, int(places[-1]) + 1)
            self.rows[part] = rows[places - first]

        map_in_threads(read, parts, self._threads)

    def find(self, numbers: UInt64s) -> Int64s:
        """Return the places in `rows` of the documents to compare."""
        return np.searchsorted(self._numbers, numbers)

    def read_shingles(self, places: Int64s) -> dict[int, UInt64s]:
        """Return the sorted sets of shingles of the documents to compare, given by their places in order."""
        rows, own = self.rows[places], self._own[places]
        starts = rows["start"].astype(np.int64)
        # Tokens of neighbouring documents are one read.
        parts = _split(own, starts, starts + rows["length"], self._token_bytes)
        pieces = [(self._runs[own[part.start]], rows[part]) for part in parts]
        tokens = list(map_in_threads(_read_tokens, pieces, self._threads))
        # Hash all, then make one sorted set for each document.
        self.characters[places] = 0
        found: list[list[UInt64s]] = [[] for _ in places]
        for first, counts, characters, hashes in hash_shingles(tokens, rows["length"], self._entries):
            self.characters[places[first : first + len(counts)]] += characters
            for place, part in enumerate(np.split(hashes, np.cumsum(counts)[:-1]), first):
                found[place].append(part)
        return {place: np.unique(np.concatenate(parts)) for place, parts in zip(places.tolist(), found, strict=True)}


def _split(runs: Int64s, starts: Int64s, ends: Int64s, size: int) -> list[slice]:
    """Divide documents to compare, of items of `size` bytes, into parts that are read at once: close, not long."""
    apart = runs[1:] != runs[:-1]
    apart |= starts[1:] - ends[:-1] > BLOCK_BYTES // size
    stretch = starts // (READ_BYTES // size)
    apart |= stretch[1:] != stretch[:-1]
    edges = [0, *(np.flatnonzero(apart) + 1).tolist(), len(runs)]
    return [slice(first, last) for first, last in itertools.pairwise(edges) if first < last]


def _read_tokens(piece: tuple[Run, Rows]) -> Tokens:
    """Read the tokens of a run's documents to compare with one read, and leave out those between them."""
    run, rows = piece
    tokens = run.read_tokens(rows)
    starts = (rows["start"] - rows["start"][0]).astype(np.int64)
    lengths = rows["length"].astype(np.int64)
    return tokens[spread(starts, lengths)]


def read_similar(store: Store, min_jaccard: float) -> Rows:
    """Read the pairs that a task found at or above a similarity, `SIMILAR_DTYPE (pairs,)`.

    Raises:
        WorkFileDamagedError: a file is absent or damaged.
    """
    pairs = TaskOutput(store).read_rows(SIMILAR_FILE, SIMILAR_DTYPE)
    return pairs[pairs["jaccard"] >= min_jaccard]
