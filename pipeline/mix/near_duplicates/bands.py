"""The bands stage: the keys of a run's documents, sorted, so that a range of keys is one slice of every run's file.

`bands.bin` has 14 rows per document, of equal documents of the run only for the first; `edges.bin` tells where each
4096th part of the key space begins. The tokens are read from the run: encoding needs to know nothing of it, and a build
that looks for near-duplicates later encodes nothing again. Memory: 240 bytes per document, and a chunk of tokens.
Scratch: 280 bytes per document.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from pipeline.arrow_arrays import split_by_size
from pipeline.encode.run import Run
from pipeline.engine.checksums import ChecksummedWriter, write_checksummed
from pipeline.engine.receipts import Result, TaskOutput
from pipeline.engine.tasks import NOT_IN_DIGEST, InDigest, Payload, Report, digest_of_payload, last_part
from pipeline.mix.near_duplicates import signatures
from pipeline.mix.near_duplicates.signatures import BANDS, WIDTH, band_keys, hash_shingles
from shards.audit.ngrams import token_values
from shards.format.equal_hashes import mark_first

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Rows

BANDS_FILE = "bands.bin"
EDGES_FILE = "edges.bin"
BAND_DTYPE = np.dtype(
    [
        ("key", "<u8"),  # from `band_keys`
        ("length", "<u4"),  # tokens of the document, EOS included
        ("hash", "<u4"),  # the first 4 bytes of its content hash, as a big-endian number
        ("index", "<u4"),  # its place in the run
    ]
)
BANDS_BYTES = BANDS * BAND_DTYPE.itemsize
"""Bytes of a document's rows."""
EDGE_BITS = 12
"""A range of keys begins at a multiple of 2^-12 of the key space."""
_EDGE_DTYPE = np.dtype("<u8")

CHUNK_TOKENS = 1 << 17
"""Tokens whose signatures are made at once, or one longer document."""


@dataclass(frozen=True, slots=True)
class BandsTask(Payload):
    """The input of one bands task; plain data."""

    CODE: ClassVar = (1, signatures.CODE_VERSION, WIDTH)

    run: Annotated[str, InDigest(last_part, "after.encode")]
    """The address of the folder of the task that wrote the run, whose digest covers the tokenizer."""
    dtype: Annotated[str, NOT_IN_DIGEST]
    """Of the run's tokens."""
    vocab_size: Annotated[int, NOT_IN_DIGEST]


def bands_digest(run_digest: str) -> str:
    """Return the digest of the bands task of a run."""
    return digest_of_payload(BandsTask(run_digest, "", 0))


@dataclass(slots=True, kw_only=True)
class BandsResult(Result):
    """The result of a bands task."""

    documents: int = 0
    """Distinct ones."""
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
    values = token_values(task.vocab_size)
    keys = np.zeros((len(rows), BANDS), np.uint64)
    done = 0
    # The keys of all documents, chunk by chunk.
    for first, last in split_by_size(rows["length"], CHUNK_TOKENS):
        tokens = run.read_tokens(rows[first:last])
        keys[first:last] = band_keys(*hash_shingles(tokens, rows["length"][first:last].astype(np.int64), values))
        done += len(tokens)
        report(done * tokens.itemsize, done)

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
            sorted_rows["length"] = rows["length"][documents]
            sorted_rows["hash"] = rows["hash_hi"][documents] >> np.uint64(32)
            sorted_rows["index"] = documents
            file.write(sorted_rows.view(np.uint8).data)
            counts += np.bincount((own >> np.uint64(64 - EDGE_BITS)).astype(np.int64), minlength=len(counts))
    edges = np.append(0, np.cumsum(counts)).astype(_EDGE_DTYPE)
    files = {BANDS_FILE: file.facts(), EDGES_FILE: write_checksummed(folder / EDGES_FILE, edges.tobytes())}
    return BandsResult(documents=len(distinct), rows=int(edges[-1]), files=files)


def find_range(bands: TaskOutput[Any], number: int, ranges: int) -> tuple[int, int]:
    """Return the rows [first, last) of a bands task that are in one of this many equal ranges of keys."""
    edges = np.frombuffer(bands.read(EDGES_FILE), _EDGE_DTYPE)[:: (1 << EDGE_BITS) // ranges]
    return int(edges[number]), int(edges[number + 1])


def read_rows(bands: TaskOutput[Any], first: int, last: int) -> Rows:
    """Read the rows [first, last) of a bands task, `BAND_DTYPE (last - first,)`."""
    size = BAND_DTYPE.itemsize
    return np.frombuffer(bands.read(BANDS_FILE, first * size, last * size), BAND_DTYPE)
