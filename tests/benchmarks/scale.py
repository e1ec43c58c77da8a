"""What mixing, assembling and opening cost with as many documents, runs and shards as a large corpus has.

The runs are synthetic: real receipts, checksums, sorted hashes and lengths, and no text. Every measurement is a process
of its own; its seconds are processor seconds where others share the machine, its peaks are the kernel's.

The sizes are constants, for `--set`: 200 million documents take 7.2 GB of disk and about four minutes.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.assemble.assemble import AssembleResult, AssembleTask, assemble_shards
from pipeline.builder.stages.assemble import group_assembled_shards
from pipeline.encode.encode import EncodeResult
from pipeline.encode.run import DOCUMENT_DTYPE, DOCUMENTS_FILE, TOKENS_FILE, Run, RunList, load_runs
from pipeline.engine.checksums import WrittenFile, checksum_file, seal, write_checksummed
from pipeline.engine.driver import Driver
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.receipts import RECEIPT_FILE, TaskOutput, write_receipt
from pipeline.engine.stage_progress import Progress
from pipeline.engine.tasks import Call, Task
from pipeline.mix.cuts import MixResult, MixTask, mix_runs
from pipeline.mix.mix_plan import ShardPlan
from pipeline.recipe.schema import Recipe
from shards.format.manifest import MANIFEST_FILE
from shards.format.reader import open_set
from shards.format.writer import SetProperties
from shards.stores.store import FolderStore
from shards.validation.validate import validate
from tests.benchmarks.harness import MB, Figures, TopicSkippedError, count_usage, in_process, remove
from tests.benchmarks.sets import write_copies_of_shard, write_sample_set

DOCUMENTS_A_RUN = 62_500
"""A unit of 64 MB with the usual kilobyte a document."""
TOKENS_A_DOCUMENT = 1000
WEIGHTS = (87, 10, 3)
FEW_RUNS = 100
"""Of the set with which the assembling of many runs is compared: 2 MB a run and shard."""
MIX_DOCUMENTS, TASKS = (4_000_000, 8_000_000), 2000
ASSEMBLE: list[tuple[int, int]] = []
"""Runs and shards of the sets to assemble."""
OPEN_SHARDS: list[int] = []
"""Shards of the sets to open."""
COPIES = 0.05
"""The share of the documents that are drawn from few, and so have copies in other runs and sources."""


def bench_scale(work: Path, quick: bool) -> Figures:
    """Measure mixes of two sizes, and a stage with nothing to do; and what `ASSEMBLE` and `OPEN_SHARDS` ask for."""
    few, many = (number // 8 if quick else number for number in MIX_DOCUMENTS)
    small, large = (_bench_mix(work, documents) for documents in (few, many))
    figures = {f"mix_{few}_{name}": value for name, value in small.items()}
    figures |= {f"mix_{many}_{name}": value for name, value in large.items()}
    figures["mix_growth"] = large["cpu_s"] / small["cpu_s"] / (many / few)
    figures |= {f"nothing_{name}": value for name, value in _bench_nothing(work, 500 if quick else TASKS).items()}
    for runs, shards in ASSEMBLE:
        found = _bench_assemble(work, runs, shards)
        figures |= {f"assemble_{runs}_{shards}_{name}": value for name, value in found.items()}
    for shards in OPEN_SHARDS:
        figures |= {f"open_{shards}_{name}": value for name, value in _bench_open(work, shards).items()}
    return figures


@contextlib.contextmanager
def _scratch(work: Path, needed: int = 0) -> Generator[Path]:
    """Yield a folder for synthetic runs, which is removed; refuse a size for which the disk has no room."""
    free = shutil.disk_usage(work).free
    if needed * 1.1 > free:
        raise TopicSkippedError(f"{work}: {free / 1e9:.1f} GB are free, {needed * 1.1 / 1e9:.1f} GB are needed")
    try:
        yield work / "scale"
    finally:
        remove(work, "scale")


def _bench_mix(work: Path, documents: int) -> Figures:
    """Mix synthetic runs of three sources into shards of 100 million tokens."""
    with _scratch(work, documents * 40) as folder:
        runs = write_runs(folder / "encode", documents, min(DOCUMENTS_A_RUN, documents // 50))
        shard_tokens = min(100 * MB, documents * TOKENS_A_DOCUMENT // 20)
        return {"runs": len(runs)} | in_process(_mix, folder / "mix", runs, shard_tokens)


def _mix(folder: Path, runs: list[Run], shard_tokens: int) -> Figures:
    folder.mkdir()
    address = write_list(folder.parent, runs)  # a build knows the receipts from encoding
    before = count_usage()
    result = mix_runs(folder, MixTask(make_recipe(shard_tokens), (), address), None)
    write_receipt(folder, result)
    return before() | {
        "receipt_bytes": (folder / RECEIPT_FILE).stat().st_size,
        "files_bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "shards": len(result.plan.shards) if result.plan else 0,
    }


def _bench_assemble(work: Path, runs: int, shards: int) -> Figures:
    """Assemble one task's shards, from the middle of a set of so many shards of 100 million tokens.

    It is compared with as many bytes from `FEW_RUNS`, in the same process. All runs of a set have the same tokens,
    random and spread as words are, in one file under many names. Figures are for each shard; `overhead` is the part by
    which `cpu_s` is more than from few runs, `kb_a_run` what a task takes of each run.
    """
    few_shards = min(shards, FEW_RUNS)
    needed = (shards + few_shards) * 4 * MB + few_shards * 240 * MB // FEW_RUNS + 10_000 * MB
    with _scratch(work, needed) as folder:
        for name, own_runs, own_shards in (("few", FEW_RUNS, few_shards), ("many", runs, shards)):
            documents = own_shards * 100 * MB // TOKENS_A_DOCUMENT
            tokens = write_tokens(folder / name, documents // own_runs)
            written = write_runs(folder / name / "encode", documents, documents // own_runs, tokens=tokens)
            in_process(_mix, folder / name / "mix", written, 100 * MB)
        return in_process(_assemble, folder / "many", folder / "few")


def _assemble(many: Path, few: Path) -> Figures:
    began = time.perf_counter()
    runs = load_runs(str(many / LIST_FILE))
    loaded = time.perf_counter() - began
    groups = _group(many)
    group = groups[len(groups) // 2]
    others = [shards for shards in _group(few) if shards[0].split == "train"][: max(2, len(group) // 4)]
    _assemble_group(few, others[0])  # loads libraries

    def measure(folder: Path, chosen: list[tuple[ShardPlan, ...]]) -> tuple[Figures, tuple[Task, Figures]]:
        """Return what a shard takes, and the last task with its result."""
        load_runs(str(folder / LIST_FILE))  # a process keeps one list
        used = count_usage()
        *_, last = [_assemble_group(folder, shards) for shards in chosen]
        return {name: value / sum(map(len, chosen)) for name, value in used().items()}, last

    half = len(others) // 2
    first, _ = measure(few, others[:half])  # before and after: the load of others changes
    used, (task, result) = measure(many, [group])
    second, _ = measure(few, others[half : 2 * half])
    few_cpu_s = (first["cpu_s"] + second["cpu_s"]) / 2
    taken: list[int] = []
    for run in runs:
        slices = [part for shard in group for part in shard.slices if part.source == run.source]
        _, rows = run.read_between(slices[0].start, slices[-1].stop)
        start, stop = run.token_range(rows)
        taken.append(stop - start)
    call = Call("pipeline.assemble.assemble:assemble_shards", task, FolderStore(many), FolderStore(many))
    return {
        "shards_a_task": len(group),
        "load_runs_s": loaded,
        **used,
        "few_cpu_s": few_cpu_s,
        "overhead": used["cpu_s"] / few_cpu_s - 1,
        "kb_a_run": sum(taken) / len(taken) / 1000,
        "least_kb_a_run": min(taken) / 1000,
        "control_bytes": (len(pickle.dumps(call)) + len(seal(result))) / len(group),
    }


def _group(folder: Path) -> list[tuple[ShardPlan, ...]]:
    plan = TaskOutput(FolderStore(folder / "mix"), MixResult).result.plan
    assert plan is not None
    runs = load_runs(str(folder / LIST_FILE))
    documents = 100 * MB // TOKENS_A_DOCUMENT
    return group_assembled_shards(plan.shards, runs=len(runs), shard_bytes=200 * MB, shard_documents=documents)


def _assemble_group(folder: Path, shards: tuple[ShardPlan, ...]) -> tuple[Task, AssembleResult]:
    names = tuple(f"s{number}" for number in range(len(WEIGHTS)))
    properties = SetProperties(32_000, 0, "0" * 64)
    payload = AssembleTask(shards, str(folder / LIST_FILE), str(folder / "mix"), names, 0, properties)
    return Task("0" * 32, payload, 0), assemble_shards(_new_folder(folder), payload, lambda done, tokens: None)


def _new_folder(folder: Path) -> Path:
    own = folder / "set"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    return own


LIST_FILE = "runs.json"


def write_list(folder: Path, runs: list[Run]) -> str:
    """Write the list of runs, as a build does, and return its address."""
    listed = RunList(FolderStore(folder), runs)
    listed.name, listed.address = LIST_FILE, str(folder / LIST_FILE)
    listed.write()
    return listed.address


def _bench_nothing(work: Path, tasks: int) -> Figures:
    """Run a stage of so many finished tasks, each with a run's receipt: there is nothing to do."""
    with _scratch(work) as folder:
        write_runs(folder / "encode", tasks, 1)
        return in_process(_run_stage, folder, tasks)


def _run_stage(folder: Path, number: int) -> Figures:
    tasks = [Task(f"{index:032x}", None, 0) for index in range(number)]
    (folder / "encode" / tasks[0].digest / RECEIPT_FILE).unlink()
    with closing(LocalExecutor(1)) as executor:
        for ran in (1, 0):
            before = count_usage()
            done = Driver(FolderStore(folder), executor, Progress()).run_stage("encode", write_one, tasks)
            if (len(done.results), done.ran) != (number, ran):
                raise RuntimeError(f"{done.ran} of {len(done.results)} tasks ran; expected {ran} of {number}")
    return before()


def write_one(folder: Path, _payload: None, _report: Callable[[int, int], None]) -> EncodeResult:
    """Do the work of a task that has nearly none."""
    return EncodeResult(documents=0, files={DOCUMENTS_FILE: write_checksummed(folder / DOCUMENTS_FILE, b"")})


def _bench_open(work: Path, shards: int) -> Figures:
    """Open and check a set of so many shards at the quick level: one small shard's files under many names."""
    with _scratch(work) as folder:
        write_sample_set(folder / "one")
        write_copies_of_shard(folder / "one", "train-00000", folder / "many", shards)
        return in_process(_open, folder / "many")


def _open(folder: Path) -> Figures:

    before = count_usage()
    opened = open_set(folder)
    open_s = before()["cpu_s"]
    checked = validate(folder, level="quick", threads=1)
    return {
        "manifest_bytes": (folder / MANIFEST_FILE).stat().st_size,
        "shards": len(opened.shards),
        "problems": len(checked.problems),
        "open_s": open_s,
        "validate_s": before()["cpu_s"] - open_s,
    }


def write_tokens(folder: Path, documents: int) -> Path:
    """Write tokens for a run of so many documents, more frequent ones at lower ids."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    path = folder / "tokens.bin"
    number = int(documents * TOKENS_A_DOCUMENT * 1.2)
    path.write_bytes(np.minimum(rng.zipf(1.1, number), 31_999).astype("<u2").tobytes())
    return path


def make_recipe(shard_tokens: int) -> Recipe:
    """Return a recipe of three sources, 87/10/3, which takes all that they have."""

    sources = [{"name": f"s{i}", "paths": ["x"], "weight": weight} for i, weight in enumerate(WEIGHTS)]
    return Recipe.model_validate(
        {
            "name": "scale",
            "sources": sources,
            "tokenizer": {"vocab_size": 32_000},
            "split": {"val_tokens": shard_tokens // 10},
            "shards": {"tokens": shard_tokens},
            "mix": {"when_short": "shrink"},
        }
    )


def write_runs(folder: Path, documents: int, documents_a_run: int, *, tokens: Path | None = None) -> list[Run]:
    """Write runs as the encode stage does, without text.

    Args:
        folder: the stage's folder.
        documents: of all runs.
        documents_a_run: of each.
        tokens: a file of tokens that every run links to; None: a hole of the right size, which a mix does not read.
    """

    number = -(-documents // documents_a_run)
    shared = checksum_file(tokens) if tokens else None
    runs: list[Run] = []
    for index in range(number):
        own = folder / f"{index:032x}"
        own.mkdir(parents=True)
        rows = _draw_documents(index, documents_a_run, documents)
        header = _npy_header(rows)
        files = {DOCUMENTS_FILE: write_checksummed(own / DOCUMENTS_FILE, header + rows.tobytes())}
        if tokens and shared:
            os.link(tokens, own / TOKENS_FILE)
            files[TOKENS_FILE] = replace(shared)
        else:
            (own / TOKENS_FILE).touch()
            os.truncate(own / TOKENS_FILE, size := 2 * int(rows["length"].sum()))
            files[TOKENS_FILE] = WrittenFile(size)
        source = int(np.searchsorted(np.cumsum(WEIGHTS) / sum(WEIGHTS), index / number, "right"))
        label = f"data/part-{index:05d}.parquet@{index:016x}#rg0-1"
        result = EncodeResult(labels=[label], documents=len(rows), files=files)
        write_receipt(own, result)
        runs.append(Run(str(own), source, "<u2", result))
    return runs


def _draw_documents(seed: int, number: int, total: int) -> Any:
    """Return the sorted rows of one run; some are of the few that are drawn again and again."""

    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 1 << 64, (number, 2), np.uint64)
    copies = int(number * COPIES)
    few = rng.integers(0, max(1, int(total * COPIES) // 2), copies, np.uint64)
    hashes[:copies, 0], hashes[:copies, 1] = (_scramble(few * np.uint64(2) + np.uint64(half)) for half in (0, 1))
    hashes = hashes[np.argsort(hashes[:, 0])]
    rows = np.zeros(number, DOCUMENT_DTYPE)
    rows["hash_hi"], rows["hash_lo"] = hashes.T
    rows["length"] = 2 + rng.exponential(TOKENS_A_DOCUMENT - 2, number).astype(np.uint32)
    rows["start"] = np.cumsum(rows["length"], dtype=np.uint64) - rows["length"]
    rows["row"] = rng.permutation(number)
    return rows


def _scramble(numbers: Any) -> Any:
    """Spread numbers over 64 bits (the finalizer of splitmix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _npy_header(rows: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, np.lib.format.header_data_from_array_1_0(rows))
    return buffer.getvalue()
