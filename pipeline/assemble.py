"""Assemble: write one shard from a contiguous slice of every run. Reads are sequential; `shards.format.writer` writes.

A generator seeded with (seed, split, shard) permutes the documents, starting from an order that depends on content.
Memory: one shard's tokens.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from pipeline.arrow import wrap_numbers, wrap_texts
from pipeline.encode.run import DOCUMENT_DTYPE, Run, load_runs
from pipeline.engine.timer import Timer
from pipeline.mix.kept import read_kept
from pipeline.mix.plan import ShardPlan, Slice
from shards.format.hashes import join_hashes
from shards.format.manifest import Split
from shards.format.writer import SetProperties, document_schema, write_shard
from shards.stores.open import open_store

if TYPE_CHECKING:
    import numpy.typing as npt

CODE_VERSION = 1
"""Increase when the same plan would give other shards."""

_CHUNK_DOCUMENTS = 512
_SPLIT_SEEDS = {"train": 0, "val": 1}


@dataclass(frozen=True, slots=True)
class AssembleTask:
    """The input of one assemble task; plain data."""

    shard: ShardPlan
    runs: str
    """The address of the list of runs, of a `RunList`."""
    mix: str
    """The address of the mix task's folder, which tells the documents that are kept."""
    source_names: tuple[str, ...]
    seed: int
    properties: SetProperties


@dataclass(slots=True)
class _Piece:
    """The documents that one slice takes from one run."""

    run: int
    slice: Slice
    rows: npt.NDArray[np.void]
    tokens: npt.NDArray[np.unsignedinteger]
    offsets: npt.NDArray[np.int64]
    """First token of each row in `tokens`."""


def assemble_shard(folder: Path, task: AssembleTask, report: Callable[[int, int], None]) -> dict[str, Any]:
    """Write one shard.

    Args:
        folder: an empty folder; the engine moves the files to the set.
        task: the shard's plan and its runs.
        report: called with (bytes of tokens, tokens) done so far.

    Returns:
        The shard's manifest entry, its files, seconds by step.
    """
    timer = Timer()
    runs = load_runs(task.runs)
    pieces = list(_gather(task, runs))
    timer.lap("gather_s")
    order = _permute(pieces, task)
    documents = _document_table(pieces, order, task, runs)
    timer.lap("documents_s")

    def chunks() -> Iterator[bytes]:
        done = 0
        for chunk in _token_chunks(pieces, order):
            yield chunk
            done += len(chunk)
            report(done, done // pieces[0].tokens.itemsize)

    entry = write_shard(
        folder,
        split=cast("Split", task.shard.split),
        index=task.shard.index,
        properties=task.properties,
        chunks=chunks(),
        documents=documents,
    )
    timer.lap("write_s")
    written = (entry.files.tokens, entry.files.documents, entry.files.metadata)
    files = {file.path: {"bytes": file.bytes, "sha256": file.sha256} for file in written}
    return {"entry": entry.model_dump(), "files": files, "seconds": timer.seconds}


def _gather(task: AssembleTask, runs: tuple[Run, ...]) -> Iterator[_Piece]:
    kept = read_kept(open_store(task.mix), len(runs))
    for part in task.shard.slices:
        for index, run in enumerate(runs):
            if run.source != part.source:
                continue
            first, rows = run.read_between(part.start, part.stop)
            if not len(rows):
                continue
            keep = kept.mask(index, first, first + len(rows))
            offsets = (rows["start"] - rows["start"][0]).astype(np.int64)
            yield _Piece(index, part, rows[keep], run.read_tokens(rows), offsets[keep])


def _permute(pieces: list[_Piece], task: AssembleTask) -> npt.NDArray[np.int64]:
    """Return the order of the documents: indices into the pieces' rows, one piece after the other.

    The starting order is by (hash, epoch), which does not depend on how files or units are cut. The sort keys are raw
    output of PCG64: numpy guarantees these values, but not the result of `permutation`.
    """
    if not pieces:
        return np.zeros(0, np.int64)
    hi, lo = (np.concatenate([piece.rows[name] for piece in pieces]) for name in ("hash_hi", "hash_lo"))
    epochs = np.repeat([piece.slice.epoch for piece in pieces], [len(piece.rows) for piece in pieces])
    by_content = np.lexsort((epochs, lo, hi))
    seeds = np.random.SeedSequence([task.seed, _SPLIT_SEEDS[task.shard.split], task.shard.index])
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
    values = wrap_texts(pa.string(), [names[code].encode() for code in used.tolist()])
    return pa.DictionaryArray.from_arrays(wrap_numbers(pa.int32(), indices.astype(np.int32)), values)
