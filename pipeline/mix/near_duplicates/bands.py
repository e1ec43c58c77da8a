"""The bands stage: signatures of a run's documents, and their keys, sorted: a range of keys is one slice of each file.

`bands.bin` has 14 rows per document, of equal documents of the run only for the first; `edges.bin` tells where each
4096th part of the key space begins. The text is spelled from the run's tokens: encoding needs to know nothing of it,
and a build that looks for near-duplicates later re-encodes nothing. Memory: 240 bytes per document, and a part of the
text. Scratch: 280 bytes per document.

Documents are compared by their sets of shingles (`normal_text`). Two agree in a slot with a probability equal to the
Jaccard similarity J of their sets, and have a band in common with 1 - (1 - J^8)^14: 0.56 at 0.7, 0.92 at 0.8, 0.988 at
0.85, 0.9996 at 0.9; the shape is FineWeb's (Penedo et al. 2024). A common band makes a pair a candidate; its Jaccard
similarity is then computed exactly.

Each shingle is hashed once: its hash chooses the slot and the value, and the least value of a slot stays (one
permutation hashing, Li, Owen and Zhang 2012). An empty slot, of which short documents have many, takes the value of the
first slot with one in an order that belongs to the empty slot (optimal densification, Shrivastava 2017).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from pipeline.arrow_arrays import split_by_size
from pipeline.encode.run import Run, RunsAddress
from pipeline.engine.checksums import ChecksummedWriter, write_checksummed
from pipeline.engine.receipts import Result, TaskOutput
from pipeline.engine.tasks import NOT_IN_DIGEST, Payload, Report, digest_of_payload
from pipeline.mix.near_duplicates.normal_text import PART_TOKENS, UNICODE_VERSION, Openings, hash_shingles, load_entries
from shards.audit.ngrams import finalize
from shards.format.arrays import Int64s, Rows, Tokens, UInt32s, UInt64s, find_bounds
from shards.format.content_hash import mark_first

BANDS = 14
ROWS = 8
"""Slots in a band."""
SLOTS = BANDS * ROWS
BAND_BITS = 4
"""The first bits of a key tell its band."""

EMPTY = np.uint32(2**32 - 1)
_SEED = 0x6E656172
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)
"""One for each place of a band: odd, with well-spread bits."""


def _fill_orders() -> Int64s:
    """Return for each slot of a signature the fixed order in which it asks all slots, `(SLOTS, SLOTS)`."""
    draws = np.asarray(np.random.PCG64(_SEED).random_raw(SLOTS * SLOTS), np.uint64)
    return np.argsort(draws.reshape(SLOTS, SLOTS), axis=1)


_ORDERS = _fill_orders()


def add_shingles(slots: UInt32s, hashes: UInt64s, counts: Int64s) -> None:
    """Add shingles to the slots of documents, which are `EMPTY` at first.

    Args:
        slots: changed, `(documents * SLOTS,)`.
        hashes: shingles of these documents, from `hash_shingles`.
        counts: how many each document has of them, `(documents,)`.
    """
    # The upper half of a hash chooses the slot, the lower half is the value.
    places = (((hashes >> np.uint64(32)) * np.uint64(SLOTS)) >> np.uint64(32)).astype(np.int64)
    places += np.repeat(np.arange(len(counts)) * SLOTS, counts)
    np.minimum.at(slots, places, hashes.astype(np.uint32))


def band_keys(slots: UInt32s) -> UInt64s:
    """Return the keys of the bands of documents: equal if all slots of a band are equal.

    Memory: about 1.5 KB a document.

    Args:
        slots: of documents with a shingle at least, `(documents * SLOTS,)`.

    Returns:
        uint64 `(documents, BANDS)`: the number of the band in the first `BAND_BITS` bits, a hash in the others.
    """
    signatures = _fill_empty(slots.reshape(-1, SLOTS))
    pairs = signatures.view(np.uint64).reshape(-1, BANDS, ROWS // 2)
    keys = finalize((pairs * _FACTORS).sum(axis=2, dtype=np.uint64))
    return (keys >> np.uint64(BAND_BITS)) | (np.arange(BANDS, dtype=np.uint64) << np.uint64(64 - BAND_BITS))


def _fill_empty(slots: UInt32s) -> UInt32s:
    # Ask the slots of each empty one's order in turn, for all of them at once.
    documents, empty = np.nonzero(slots == EMPTY)
    filled = slots.copy()
    for asked in _ORDERS.T:
        if not len(documents):
            break
        found = slots[documents, asked[empty]]
        good = found != EMPTY
        filled[documents[good], empty[good]] = found[good]
        documents, empty = documents[~good], empty[~good]
    return filled


BANDS_FILE = "bands.bin"
EDGES_FILE = "edges.bin"
BAND_DTYPE = np.dtype(
    [
        ("key", "<u8"),  # from `band_keys`
        ("characters", "<u4"),  # of the document's words, at most 2^32 - 1
        ("hash", "<u4"),  # the first 4 bytes of its content hash, as a big-endian number
        ("index", "<u4"),  # its place in the run
    ]
)
BANDS_BYTES = BANDS * BAND_DTYPE.itemsize
"""Bytes of a document's rows."""
EDGE_BITS = 12
"""A range of keys begins at a multiple of 2^-12 of the key space."""
EDGE_DTYPE = np.dtype("<u8")

Tokenizer = Annotated[tuple[str, str, str | None, tuple[str, ...], Openings], NOT_IN_DIGEST]
"""The tokenizer of runs, as `load_entries` takes it."""


@dataclass(frozen=True, slots=True)
class BandsTask(Payload):
    """The input of one bands task; plain data."""

    CODE: ClassVar = (3, UNICODE_VERSION)
    """Increase when a document would get other keys."""

    run: RunsAddress
    """The address of the folder of the task that wrote the run, whose digest covers the tokenizer."""
    dtype: Annotated[str, NOT_IN_DIGEST]
    """Of the run's tokens."""
    tokenizer: Tokenizer


def bands_digest(run_digest: str) -> str:
    """Return the digest of the bands task of a run."""
    return digest_of_payload(BandsTask(run_digest, "", ("", "", None, (), ())))


@dataclass(slots=True, kw_only=True)
class BandsResult(Result):
    """The result of a bands task."""

    rows: int
    """Of the bands file."""


def write_bands(folder: Path, task: BandsTask, report: Report) -> BandsResult:
    """Write the sorted band rows of a run.

    Args:
        folder: an empty folder.
        task: the run.
        report: called with (bytes of tokens, tokens) done so far.
    """
    run = Run(task.run, 0, task.dtype)
    rows = run.read_documents(0, run.num_documents)
    entries = load_entries(*task.tokenizer)
    keys, characters = np.zeros((len(rows), BANDS), np.uint64), np.zeros(len(rows), np.int64)
    done = 0
    # The keys of all documents, chunk by chunk.
    for first, last in split_by_size(rows["length"], PART_TOKENS):
        own = rows[first:last]
        slots = np.full(len(own) * SLOTS, EMPTY, np.uint32)
        for start, counts, sizes, hashes in hash_shingles(_read_parts(run, own), own["length"], entries):
            add_shingles(slots[start * SLOTS :], hashes, counts)
            characters[first + start : first + start + len(sizes)] += sizes
        keys[first:last] = band_keys(slots)
        done += int(own["length"].sum())
        report(done * np.dtype(task.dtype).itemsize, done)

    # Of documents with the same content the first stands for all.
    distinct = np.flatnonzero(mark_first(rows["hash_hi"], rows["hash_lo"]))
    # Band after band is sorted by key: the first bits of a key are its band.
    counts = np.zeros(1 << EDGE_BITS, np.int64)
    with ChecksummedWriter(folder / BANDS_FILE) as file:
        for band in range(BANDS):
            own = keys[distinct, band]
            order = np.argsort(own, kind="stable")
            documents = distinct[order]
            sorted_rows = np.zeros(len(documents), BAND_DTYPE)
            sorted_rows["key"] = own[order]
            sorted_rows["characters"] = np.minimum(characters[documents], 2**32 - 1)
            sorted_rows["hash"] = rows["hash_hi"][documents] >> np.uint64(32)
            sorted_rows["index"] = documents
            file.write(sorted_rows.view(np.uint8).data)
            counts += np.bincount((own >> np.uint64(64 - EDGE_BITS)).astype(np.int64), minlength=len(counts))
    edges = find_bounds(counts).astype(EDGE_DTYPE)
    files = {BANDS_FILE: file.facts(), EDGES_FILE: write_checksummed(folder / EDGES_FILE, edges.tobytes())}
    return BandsResult(rows=int(edges[-1]), files=files)


def _read_parts(run: Run, rows: Rows) -> Iterator[Tokens]:
    """Yield the tokens of consecutive documents, `PART_TOKENS` at once."""
    part, end = rows[:1].copy(), int(rows["start"][-1]) + int(rows["length"][-1])
    for start in range(int(rows["start"][0]), end, PART_TOKENS):
        part["start"], part["length"] = start, min(PART_TOKENS, end - start)
        yield run.read_tokens(part)


def find_range(bands: TaskOutput[Any], number: int, ranges: int) -> tuple[int, int]:
    """Return the rows [first, last) of a bands task that are in one of this many equal ranges of keys."""
    edges = bands.read_rows(EDGES_FILE, EDGE_DTYPE)[:: (1 << EDGE_BITS) // ranges]
    return int(edges[number]), int(edges[number + 1])
