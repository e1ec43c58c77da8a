"""Assemble neighbouring shards from a contiguous slice of every run, and write them with `shards.format.writer`.

A generator seeded with (seed, split, shard) permutes the documents, starting from an order that depends on content. The
slices of neighbouring shards are neighbours in every run. If there are many runs, a task therefore writes several
shards: it reads the rows that all of them need from a run at once, and from a remote store the tokens, too. Memory: one
shard's tokens, and the rows of the task's shards. Scratch: the task's shards, and from a remote
store their tokens.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_numbers, wrap_texts
from pipeline.encode.run import (
    CONNECTIONS,
    DOCUMENT_DTYPE,
    TOKENS_FILE,
    HashKey,
    Run,
    count_below,
    load_runs,
    token_dtype,
)
from pipeline.engine.checksums import WrittenFile
from pipeline.engine.receipts import Result
from pipeline.engine.tasks import NOT_IN_DIGEST, NUMBER, InDigest, Payload, Report, last_part, to_json_values
from pipeline.mix.evidence import read_evidence
from pipeline.mix.mix_plan import ShardPlan, Slice
from shards.format.arrays import Int64s, Rows, find_bounds
from shards.format.chat import mark_targets
from shards.format.content_hash import join_hashes
from shards.format.manifest import ShardEntry, Split
from shards.format.shard import document_schema
from shards.format.writer import SetProperties, write_shard
from shards.stores.open import open_store
from shards.terminal.workers import map_in_threads

MOST_CHECKSUMS_BYTES = 64 << 20
"""Checksums of runs in a remote store which a process keeps in memory."""

_CHUNK_DOCUMENTS = 512
_SPLIT_SEEDS = {"train": 0, "val": 1}


def _writing_keys(properties: SetProperties) -> dict[str, Any]:
    """Return the properties with which shards are assembled, by the recipe's keys and the stages that decide them."""
    keys = to_json_values(properties)
    tokenizer = [keys.pop(name) for name in ("tokenizer_sha256", "vocab_size", "eos_id", "bos_id")]
    return {"after": {"tokenizer": tokenizer}, "shards": keys}


@dataclass(frozen=True, slots=True)
class AssembleTask(Payload):
    """The input of one assemble task; plain data."""

    LIBRARIES: ClassVar = ("zstandard", "pyarrow")

    shards: Annotated[tuple[ShardPlan, ...], InDigest(lambda shards: [[s.split, s.index] for s in shards], NUMBER)]
    """Neighbours in one split; the mix decides what is in them."""
    runs: Annotated[str, NOT_IN_DIGEST]
    """The address of the list of runs, of a `RunList`, which the mix has read."""
    mix: Annotated[str, InDigest(last_part, "after.mix")]
    """The address of the mix task's folder, which tells the documents that are kept."""
    source_names: Annotated[tuple[str, ...], InDigest(called="sources")]
    seed: int
    properties: Annotated[SetProperties, InDigest(_writing_keys, "")]
    fetch: Annotated[bool, NOT_IN_DIGEST] = False
    """Whether the runs are read once for all shards, into a scratch file: a request takes longer than its bytes."""
    conversations: tuple[str, ...] = ()
    """The sources whose targets are counted."""
    opening: Annotated[tuple[int, ...], NOT_IN_DIGEST] = ()
    """The ids of the assistant's opening; the tokenizer and the encoded runs decide them."""
    special_ids: Annotated[tuple[int, ...], NOT_IN_DIGEST] = ()
    threads: Annotated[int, NOT_IN_DIGEST] = 1
    """How many threads compress tokens."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The documents that a task's shards take of one run in one epoch."""

    run: int
    epoch: int
    rows: Rows
    """Of those that are kept, in order, `DOCUMENT_DTYPE (documents,)`."""
    low: list[int]
    """The first row of each shard."""
    high: list[int]
    """One past the last row of each shard."""
    read_tokens: Callable[[int, int], memoryview]
    """Reads bytes [start, stop) of the run's tokens, between those of the first row and the last."""


@dataclass(frozen=True, slots=True)
class _Documents:
    """The documents of one shard, before they are permuted."""

    rows: Rows
    """`DOCUMENT_DTYPE (documents,)`."""
    runs: Int64s
    """The number of each document's run."""
    epochs: Int64s
    tokens: list[memoryview]
    """Of each part, as bytes; there are other bytes between those of its documents."""
    parts: Int64s
    """The number of each document's part."""
    starts: Int64s
    """The first byte of each document in the tokens of its part."""
    stops: Int64s
    """One past its last byte."""


@dataclass(slots=True, kw_only=True)
class AssembleResult(Result):
    """The result of writing some shards."""

    entries: list[ShardEntry] = field(default_factory=list[ShardEntry])
    """Those of the manifest."""
    trained_tokens: dict[str, int] = field(default_factory=dict[str, int])
    """The targets of the training documents, of each source of conversations."""
    checksums: dict[str, str] = field(default_factory=dict[str, str])
    """Of tokens, by which the build validates them: by SHA-256 the XXH3-128 of the same bytes."""


def assemble_shards(folder: Path, task: AssembleTask, report: Report) -> AssembleResult:
    """Write a task's shards, one after the other.

    Args:
        folder: an empty folder; the engine moves the files to the set.
        task: the shards' plans and their runs.
        report: called with (bytes of tokens, tokens) done so far.
    """
    runs = load_runs(task.runs)
    sources = np.array([run.source for run in runs], np.int64)
    result = AssembleResult()
    done = 0
    dtype = np.dtype(token_dtype(task.properties.vocab_size))
    token_bytes = dtype.itemsize
    counted = np.zeros(len(task.source_names), np.int64)
    with _open_parts(folder, task, runs) as parts:
        for number, shard in enumerate(task.shards):
            documents = _gather(parts, number, token_bytes)
            report.lap("gather_s")
            order = _permute(documents, shard, task.seed)
            table = _document_table(documents, order, task, runs, sources)
            report.lap("documents_s")

            def chunks(
                documents: _Documents = documents, order: Int64s = order, split: str = shard.split
            ) -> Iterator[bytes]:
                nonlocal done
                for chosen, chunk in _token_chunks(documents, order):
                    yield chunk
                    if task.conversations and split == "train":
                        tokens, lengths = np.frombuffer(chunk, dtype), documents.rows["length"][chosen].astype(np.int64)
                        _count_targets(counted, tokens, lengths, sources[documents.runs[chosen]], task)
                    done += len(chunk)
                    report(done, done // token_bytes)

            entry = write_shard(
                folder,
                split=cast("Split", shard.split),
                index=shard.index,
                properties=task.properties,
                chunks=chunks(),
                documents=table,
                phase=shard.phase,
                checksums=result.checksums,
                threads=task.threads,
            )
            report.lap("write_s")
            result.entries.append(entry)
            result.files |= {file.path: WrittenFile(file.bytes, file.sha256) for file in entry.files.entries}
    numbers = dict(zip(task.source_names, counted.tolist(), strict=True))
    result.trained_tokens = {name: numbers[name] for name in task.conversations}
    return result


def _count_targets(counted: Int64s, tokens: Any, lengths: Int64s, sources: Int64s, task: AssembleTask) -> None:
    """Add to `counted`, by source, the targets of some assembled documents."""
    bounds = find_bounds(lengths)
    targets = mark_targets(tokens, bounds, task.special_ids, task.opening)
    counted += np.bincount(np.repeat(sources, lengths), targets, len(counted)).astype(np.int64)


@contextmanager
def _open_parts(folder: Path, task: AssembleTask, runs: tuple[Run, ...]) -> Generator[list[_Part]]:
    """Read which documents an assemble task's shards need from each run, and prepare to read their tokens."""
    evidence = read_evidence(open_store(task.mix), len(runs))
    # The next task of this process may use the same checksums.
    forget = task.fetch and sum(run.output.checksums_bytes for run in runs) > MOST_CHECKSUMS_BYTES
    slices = _join_slices(task.shards)
    jobs = [(n, *part) for part in slices for n, run in enumerate(runs) if run.source == part[0].source]

    def open_part(number: int, whole: Slice, edges: list[HashKey]) -> _Part | None:
        run = replace(runs[number]) if forget else runs[number]
        first, rows = run.read_between(whole.start, whole.stop)
        places = np.flatnonzero(evidence.kept(number, first, first + len(rows)))
        rows = rows[places]
        if not len(rows):
            return None
        low, high = count_below(rows, edges).reshape(2, -1).tolist()
        return _Part(number, whole.epoch, rows, low, high, partial(run.output.read, TOKENS_FILE))

    if not task.fetch:
        yield [part for job in jobs if (part := open_part(*job))]
        return
    # Each run is asked once; what it gives lies in a scratch file until a shard needs it.
    with tempfile.TemporaryFile(dir=folder) as file:
        lock = threading.Lock()

        def fetch(job: tuple[int, Slice, list[HashKey]]) -> _Part | None:
            part = open_part(*job)
            if part is None:
                return None
            first, last = runs[part.run].token_range(part.rows)
            tokens = part.read_tokens(first, last)
            with lock:
                place = file.tell() - first
                file.write(tokens)

            def read(start: int, stop: int) -> memoryview:
                file.seek(place + start)
                return memoryview(file.read(stop - start))

            return replace(part, read_tokens=read)

        yield [part for part in map_in_threads(fetch, jobs, CONNECTIONS) if part]


def _join_slices(shards: Sequence[ShardPlan]) -> list[tuple[Slice, list[HashKey]]]:
    """Return what neighbouring shards take together, by source and epoch, and where each one's part begins and ends."""
    joined: dict[tuple[int, int], list[Slice]] = {}
    for number, shard in enumerate(shards):
        for part in shard.slices:
            own = joined.setdefault((part.source, part.epoch), [])
            # A shard that takes nothing has an empty part.
            own += [replace(part, stop=part.start)] * (number - len(own)) + [part]
    for own in joined.values():
        own += [replace(own[-1], start=own[-1].stop)] * (len(shards) - len(own))
    return [
        (replace(own[0], stop=own[-1].stop), [part.start for part in own] + [part.stop for part in own])
        for own in joined.values()
    ]


def _gather(parts: list[_Part], shard: int, token_bytes: int) -> _Documents:
    """Read the tokens of an assembled shard from its slice of each run."""
    own = [(part, part.low[shard], part.high[shard]) for part in parts if part.low[shard] < part.high[shard]]
    counts = np.array([high - low for _, low, high in own], np.int64)
    # Not `np.concatenate`, which takes 25 microseconds for each array of records to compare their types.
    rows = np.frombuffer(b"".join([part.rows[low:high].data for part, low, high in own]), DOCUMENT_DTYPE)
    starts = rows["start"].astype(np.int64) * token_bytes
    stops = starts + rows["length"].astype(np.int64) * token_bytes
    # One read for each part: from its first document's first byte to its last one's last.
    lasts = np.cumsum(counts) - 1
    firsts = starts[lasts + 1 - counts]
    ranges = zip(own, firsts.tolist(), stops[lasts].tolist(), strict=True)
    moved = np.repeat(firsts, counts)
    return _Documents(
        rows=rows,
        runs=np.repeat(np.array([part.run for part, _, _ in own], np.int64), counts),
        epochs=np.repeat(np.array([part.epoch for part, _, _ in own], np.int64), counts),
        tokens=[part.read_tokens(first, stop) for (part, _, _), first, stop in ranges],
        parts=np.repeat(np.arange(len(own)), counts),
        starts=starts - moved,
        stops=stops - moved,
    )


def _permute(documents: _Documents, shard: ShardPlan, seed: int) -> Int64s:
    """Return the shuffled order of an assembled shard's documents: indices into the rows."""
    rows = documents.rows
    # The order before, by (hash, epoch), does not depend on how files or units are cut.
    by_content = np.lexsort((documents.epochs, rows["hash_lo"], rows["hash_hi"]))
    seeds = np.random.SeedSequence([seed, _SPLIT_SEEDS[shard.split], shard.index])
    # Raw output of PCG64: numpy guarantees these values, but not the result of `permutation`.
    keys = np.random.PCG64(seeds).random_raw(len(by_content))
    return by_content[np.argsort(keys, kind="stable")]


def _token_chunks(documents: _Documents, order: Int64s) -> Iterator[tuple[Int64s, bytes]]:
    tokens = documents.tokens
    for first in range(0, len(order), _CHUNK_DOCUMENTS):
        chosen = order[first : first + _CHUNK_DOCUMENTS]
        places = (own[chosen].tolist() for own in (documents.parts, documents.starts, documents.stops))
        yield chosen, b"".join([tokens[part][start:stop] for part, start, stop in zip(*places, strict=True)])


def _document_table(
    documents: _Documents, order: Int64s, task: AssembleTask, runs: tuple[Run, ...], sources: Int64s
) -> pa.Table:
    # A span is identified by (run, span): number the spans of all runs, then keep those that occur.
    bases = find_bounds(np.array([len(run.labels) for run in runs]))
    labels = [label for run in runs for label in run.labels]
    rows, run_of = documents.rows[order], documents.runs[order]
    lengths = rows["length"].astype(np.uint64)
    columns = [
        wrap_numbers(pa.uint64(), np.cumsum(lengths) - lengths),
        wrap_numbers(pa.uint32(), np.ascontiguousarray(rows["length"])),
        _dictionary(sources[run_of], list(task.source_names)),
        _dictionary(bases[run_of] + rows["span"], labels),
        wrap_numbers(pa.uint32(), np.ascontiguousarray(rows["row"])),
        wrap_numbers(pa.binary(16), join_hashes(rows["hash_hi"], rows["hash_lo"])),
    ]
    return pa.Table.from_arrays(columns, schema=document_schema())


def _dictionary(codes: Int64s, names: list[str]) -> pa.DictionaryArray[Any, Any]:
    used, indices = np.unique(codes, return_inverse=True)
    # Runs that two sources share have the same names. Of a dictionary with equal values Arrow writes random bytes.
    places: dict[str, int] = {}
    place_of = np.array([places.setdefault(names[code], len(places)) for code in used.tolist()], np.int32)
    values = wrap_texts(pa.string(), [name.encode() for name in places])
    return pa.DictionaryArray.from_arrays(wrap_numbers(pa.int32(), place_of[indices]), values)
