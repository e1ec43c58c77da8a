"""Assemble: write neighbouring shards from a contiguous slice of every run; `shards.format.writer` writes.

A generator seeded with (seed, split, shard) permutes the documents, starting from an order that depends on content.
The slices of neighbouring shards are neighbours in every run. So where there are many runs, a task writes several
shards, and reads from a remote store what all of them take of a run at once. Memory: one shard's tokens. Scratch: the
task's shards, and from a remote store their tokens.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from pipeline.arrow import wrap_numbers, wrap_texts
from pipeline.encode.run import CONNECTIONS, DOCUMENT_DTYPE, Run, count_below, load_runs
from pipeline.engine.timer import Timer
from pipeline.mix.kept import Kept, read_kept
from pipeline.mix.plan import ShardPlan, Slice
from shards.format.hashes import join_hashes
from shards.format.manifest import Split
from shards.format.writer import SetProperties, document_schema, write_shard
from shards.stores.open import open_store

if TYPE_CHECKING:
    import numpy.typing as npt

CODE_VERSION = 1
"""Increase when the same plan would give other shards."""

READ_BYTES = 1 << 20
"""A task writes so many shards that it takes about this much of each run, as far as the two limits below allow."""
LEAST_TASKS = 128
"""More shards a task leave no fewer tasks than this, so that a cluster has work for its nodes."""
MOST_TASK_BYTES = 4 << 30
"""Tokens of a task's shards: scratch on its machine."""

_CHUNK_DOCUMENTS = 512
_SPLIT_SEEDS = {"train": 0, "val": 1}


@dataclass(frozen=True, slots=True)
class AssembleTask:
    """The input of one assemble task; plain data."""

    shards: tuple[ShardPlan, ...]
    """Neighbours in one split."""
    runs: str
    """The address of the list of runs, of a `RunList`."""
    mix: str
    """The address of the mix task's folder, which tells the documents that are kept."""
    source_names: tuple[str, ...]
    seed: int
    properties: SetProperties
    fetch: bool = False
    """Whether the runs are read once for all shards, into a scratch file: a request takes longer than its bytes."""


_Read = tuple[int, "npt.NDArray[np.void]", "npt.NDArray[np.unsignedinteger]"]
"""What a slice takes from a run: the index of its first document, the rows, the tokens."""
_ReadSlice = Callable[[int, Slice], _Read]
"""Reads a slice of the run with a number."""


@dataclass(slots=True)
class _Piece:
    """The documents that one slice takes from one run."""

    run: int
    slice: Slice
    rows: npt.NDArray[np.void]
    tokens: npt.NDArray[np.unsignedinteger]
    offsets: npt.NDArray[np.int64]
    """First token of each row in `tokens`."""


def group_shards(shards: Sequence[ShardPlan], *, runs: int, shard_bytes: int) -> list[tuple[ShardPlan, ...]]:
    """Divide shards among tasks. It depends on the mix alone, so that tasks are the same on any store and engine.

    Args:
        shards: all shards, those of a split together and in order.
        runs: the number of runs, from each of which a shard takes a slice.
        shard_bytes: tokens of a usual shard, in bytes.
    """
    most = shards_a_task(len(shards), runs=runs, shard_bytes=shard_bytes)
    groups: list[tuple[ShardPlan, ...]] = []
    for _, split in itertools.groupby(shards, key=lambda shard: shard.split):
        own = list(split)
        groups += [tuple(own[first : first + most]) for first in range(0, len(own), most)]
    return groups


def shards_a_task(shards: int, *, runs: int, shard_bytes: int) -> int:
    """Return how many shards a task writes at most; see `group_shards`."""
    usual = max(1, shard_bytes)
    return max(1, min(-(-READ_BYTES * runs // usual), MOST_TASK_BYTES // usual, shards // LEAST_TASKS))


def assemble_shards(folder: Path, task: AssembleTask, report: Callable[[int, int], None]) -> dict[str, Any]:
    """Write a task's shards, one after the other.

    Args:
        folder: an empty folder; the engine moves the files to the set.
        task: the shards' plans and their runs.
        report: called with (bytes of tokens, tokens) done so far.

    Returns:
        The shards' manifest entries, their files, seconds by step.
    """
    timer = Timer()
    runs = load_runs(task.runs)
    kept = read_kept(open_store(task.mix), len(runs))
    entries: list[dict[str, Any]] = []
    files: dict[str, dict[str, Any]] = {}
    done = 0
    with _open_slices(folder, task, runs) as read:
        for shard in task.shards:
            pieces = list(_gather(shard, runs, kept, read))
            timer.lap("gather_s")
            order = _permute(pieces, shard, task.seed)
            documents = _document_table(pieces, order, task, runs)
            timer.lap("documents_s")

            def chunks(pieces: list[_Piece] = pieces, order: npt.NDArray[np.int64] = order) -> Iterator[bytes]:
                nonlocal done
                for chunk in _token_chunks(pieces, order):
                    yield chunk
                    done += len(chunk)
                    report(done, done // pieces[0].tokens.itemsize)

            entry = write_shard(
                folder,
                split=cast("Split", shard.split),
                index=shard.index,
                properties=task.properties,
                chunks=chunks(),
                documents=documents,
            )
            del pieces  # before the next shard's are read
            timer.lap("write_s")
            entries.append(entry.model_dump())
            written = (entry.files.tokens, entry.files.documents, entry.files.metadata)
            files |= {file.path: {"bytes": file.bytes, "sha256": file.sha256} for file in written}
    return {"entries": entries, "files": files, "seconds": timer.seconds}


@contextmanager
def _open_slices(folder: Path, task: AssembleTask, runs: tuple[Run, ...]) -> Generator[_ReadSlice]:
    """Give what reads the slices of a task's shards."""

    def read(number: int, part: Slice) -> _Read:
        first, rows = runs[number].read_between(part.start, part.stop)
        return first, rows, runs[number].read_tokens(rows)

    if not task.fetch:
        yield read
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        lock = threading.Lock()

        def fetch(number: int, part: Slice) -> tuple[int, npt.NDArray[np.void], int]:
            first, rows, tokens = read(number, part)
            with lock:
                place = file.tell()
                file.write(tokens.data)
            return first, rows, place

        wholes = _join_slices(task.shards)
        jobs = [(n, part) for part in wholes.values() for n, run in enumerate(runs) if run.source == part.source]
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            fetched = dict(zip(jobs, pool.map(fetch, *zip(*jobs, strict=True)), strict=True))

        def read_fetched(number: int, part: Slice) -> _Read:
            first, rows, place = fetched[number, wholes[part.source, part.epoch]]
            low, high = count_below(rows, part.start), count_below(rows, part.stop)
            own, dtype = rows[low:high], np.dtype(runs[number].dtype)
            file.seek(place + int(rows["length"][:low].sum(dtype=np.uint64)) * dtype.itemsize)
            tokens = file.read(int(own["length"].sum(dtype=np.uint64)) * dtype.itemsize)
            return first + low, own, np.frombuffer(tokens, dtype)

        yield read_fetched


def _join_slices(shards: Sequence[ShardPlan]) -> dict[tuple[int, int], Slice]:
    """Return what neighbouring shards take together, by source and epoch."""
    joined: dict[tuple[int, int], Slice] = {}
    for part in (part for shard in shards for part in shard.slices):
        before = joined.setdefault((part.source, part.epoch), part)
        joined[part.source, part.epoch] = Slice(part.source, part.epoch, before.start, part.stop)
    return joined


def _gather(shard: ShardPlan, runs: tuple[Run, ...], kept: Kept, read: _ReadSlice) -> Iterator[_Piece]:
    for part in shard.slices:
        for index, run in enumerate(runs):
            if run.source != part.source:
                continue
            first, rows, tokens = read(index, part)
            if not len(rows):
                continue
            keep = kept.mask(index, first, first + len(rows))
            offsets = (rows["start"] - rows["start"][0]).astype(np.int64)
            yield _Piece(index, part, rows[keep], tokens, offsets[keep])


def _permute(pieces: list[_Piece], shard: ShardPlan, seed: int) -> npt.NDArray[np.int64]:
    """Return the order of the documents: indices into the pieces' rows, one piece after the other.

    The starting order is by (hash, epoch), which does not depend on how files or units are cut. The sort keys are raw
    output of PCG64: numpy guarantees these values, but not the result of `permutation`.
    """
    if not pieces:
        return np.zeros(0, np.int64)
    hi, lo = (np.concatenate([piece.rows[name] for piece in pieces]) for name in ("hash_hi", "hash_lo"))
    epochs = np.repeat([piece.slice.epoch for piece in pieces], [len(piece.rows) for piece in pieces])
    by_content = np.lexsort((epochs, lo, hi))
    seeds = np.random.SeedSequence([seed, _SPLIT_SEEDS[shard.split], shard.index])
    keys = np.random.PCG64(seeds).random_raw(len(by_content))
    return by_content[np.argsort(keys, kind="stable")]


def _token_chunks(pieces: list[_Piece], order: npt.NDArray[np.int64]) -> Iterator[bytes]:
    views: list[memoryview] = []
    for piece in pieces:
        view = piece.tokens.data.cast("B")
        size = piece.tokens.itemsize
        starts = piece.offsets * size
        stops = starts + piece.rows["length"].astype(np.int64) * size
        views += [view[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    indices: list[int] = order.tolist()
    for start in range(0, len(indices), _CHUNK_DOCUMENTS):
        yield b"".join([views[i] for i in indices[start : start + _CHUNK_DOCUMENTS]])


def _document_table(
    pieces: list[_Piece], order: npt.NDArray[np.int64], task: AssembleTask, runs: tuple[Run, ...]
) -> pa.Table:
    rows = np.concatenate([piece.rows for piece in pieces]) if pieces else np.zeros(0, DOCUMENT_DTYPE)
    counts = [len(piece.rows) for piece in pieces]
    # A span is identified by (run, span): number the spans of all runs in use, then keep those that occur.
    used = sorted({piece.run for piece in pieces})
    labels_of = {run: runs[run].labels for run in used}
    bases = dict(zip(used, itertools.accumulate((len(labels_of[run]) for run in used), initial=0), strict=False))
    spans = rows["span"].astype(np.int64) + np.repeat([bases[piece.run] for piece in pieces], counts)
    sources = np.repeat([piece.slice.source for piece in pieces], counts).astype(np.int64)
    labels = [label for run in used for label in labels_of[run]]
    lengths = rows["length"][order].astype(np.uint64)
    columns = [
        wrap_numbers(pa.uint64(), np.cumsum(lengths) - lengths),
        wrap_numbers(pa.uint32(), rows["length"][order]),
        _dictionary(sources[order], list(task.source_names)),
        _dictionary(spans[order], labels),
        wrap_numbers(pa.uint32(), rows["row"][order]),
        wrap_numbers(pa.binary(16), join_hashes(rows["hash_hi"][order], rows["hash_lo"][order])),
    ]
    return pa.Table.from_arrays(columns, schema=document_schema())


def _dictionary(codes: npt.NDArray[np.int64], names: list[str]) -> pa.DictionaryArray[Any, Any]:
    used, indices = np.unique(codes, return_inverse=True)
    # Runs that two sources share have the same names. Of a dictionary with equal values Arrow writes random bytes.
    places: dict[str, int] = {}
    place_of = np.array([places.setdefault(names[code], len(places)) for code in used.tolist()], np.int32)
    values = wrap_texts(pa.string(), [name.encode() for name in places])
    return pa.DictionaryArray.from_arrays(wrap_numbers(pa.int32(), place_of[indices]), values)
