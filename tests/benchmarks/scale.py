"""What mixing, assembling and opening cost with as many documents, runs and shards as a large corpus has.

The runs are synthetic: real receipts, checksums, sorted hashes and lengths, and no text. Every measurement is a process
of its own; its seconds are processor seconds where others share the machine, its peaks are the kernel's.

    python -m tests.benchmarks.scale [--mix MILLIONS] [--assemble RUNS SHARDS] [--tasks NUMBER] [--shards NUMBER]

Without flags it runs what `make bench` does. 200 million documents take 7.2 GB of disk and about four minutes.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.assemble.assemble import AssembleTask, assemble_shards
from pipeline.assemble.grouping import group_assembled_shards
from pipeline.encode.run import DOCUMENT_DTYPE, DOCUMENTS_FILE, TOKENS_FILE, Run, RunList, load_runs
from pipeline.engine.checksums import checksum_file, seal, write_checksummed
from pipeline.engine.driver import RESULTS_FILE, Driver
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.receipts import RECEIPT_FILE, write_receipt
from pipeline.engine.stage_progress import Progress
from pipeline.engine.tasks import Call, Task, call_to_json
from pipeline.mix.cuts import MixTask, mix_runs
from pipeline.mix.mix_plan import ShardPlan, plan_from_dict
from pipeline.recipe.schema import Recipe
from shards.format.manifest import MANIFEST_FILE
from shards.format.reader import open_set
from shards.format.writer import SetProperties
from shards.stores.store import FolderStore
from shards.validation.validate import validate
from tests.benchmarks.audit import write_copies_of_shard
from tests.benchmarks.material import MB, TopicSkippedError
from tests.benchmarks.validate import build_sample_set

Figures = dict[str, Any]

DOCUMENTS_A_RUN = 62_500
"""A unit of 64 MB with the usual kilobyte a document."""
TOKENS_A_DOCUMENT = 1000
WEIGHTS = (87, 10, 3)
FEW_RUNS = 100
"""Of the set with which the assembling of many runs is compared: 2 MB a run and shard."""
COPIES = 0.05
"""The share of the documents that are drawn from few, and so have copies in other runs and sources."""
_POLL_SECONDS = 0.02
_POLLER = "TOKENMILL_SCALE_POLLER"
"""The environment variable with the thread that polls, whose reads are not counted."""


def bench_scale(work: Path, *, quick: bool = False) -> Figures:
    """Measure small sizes of a mix and of a stage with nothing to do: a minute, or a few seconds with `quick`."""
    few, many = (500_000, 1_000_000) if quick else (4_000_000, 8_000_000)
    small, large = (bench_mix(work, documents) for documents in (few, many))
    figures = {f"mix_{few // MB}m_{name}": value for name, value in small.items()}
    figures |= {f"mix_{many // MB}m_{name}": value for name, value in large.items()}
    figures["mix_growth"] = large["cpu_s"] / small["cpu_s"] / (many / few)
    tasks = 500 if quick else 2000
    figures |= {f"nothing_{name}": value for name, value in bench_nothing(work, tasks).items()}
    return figures


def bench_mix(work: Path, documents: int) -> Figures:
    """Mix synthetic runs of three sources into shards of 100 million tokens.

    Returns:
        `runs`, `wall_s`, `cpu_s`, `anonymous_mb`, `resident_mb` (peaks), `open_files` (peak), `read_mb`, `reads`,
        `receipt_bytes`, `files_bytes` (all the mix writes), `shards`.

    Raises:
        TopicSkippedError: the disk is too small.
    """
    folder = work / "scale"
    check_disk(work, documents * 40)
    try:
        runs = write_runs(folder / "encode", documents, min(DOCUMENTS_A_RUN, documents // 50))
        shard_tokens = min(100 * MB, documents * TOKENS_A_DOCUMENT // 20)
        return {"runs": len(runs)} | in_process(_mix, folder / "mix", runs, shard_tokens)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _mix(folder: Path, runs: list[Run], shard_tokens: int) -> Figures:
    folder.mkdir()
    address = write_list(folder.parent, runs)  # a build knows the receipts from encoding
    before = _usage()
    result = mix_runs(folder, MixTask(make_recipe(shard_tokens), (), address), None)
    write_receipt(folder, result)
    return before() | {
        "receipt_bytes": (folder / RECEIPT_FILE).stat().st_size,
        "files_bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "shards": len(result["plan"]["shards"]),
    }


def bench_assemble(work: Path, runs: int, shards: int) -> Figures:
    """Assemble one task's shards, from the middle of a set of so many shards of 100 million tokens.

    It is compared with as many bytes from `FEW_RUNS`, in the same process. All runs of a set have the same tokens,
    random and spread as words are, in one file under many names.

    Returns:
        `shards_a_task`; for each shard `wall_s`, `cpu_s`, `reads`, `read_mb`, `control_bytes` (of its task's payload
        and receipt); `few_cpu_s`, the same from few runs; `overhead`, the part by which `cpu_s` is more; `kb_a_run` and
        `least_kb_a_run`, what a task takes of each run and so reads at once from a remote store, on average and least;
        `load_runs_s`, the reading of the list of runs, once a process; the peaks.

    Raises:
        TopicSkippedError: the disk is too small.
    """
    few_shards = min(shards, FEW_RUNS)
    folder = work / "scale"
    check_disk(work, (shards + few_shards) * 4 * MB + few_shards * 240 * MB // FEW_RUNS + 10_000 * MB)
    try:
        for name, own_runs, own_shards in (("few", FEW_RUNS, few_shards), ("many", runs, shards)):
            documents = own_shards * 100 * MB // TOKENS_A_DOCUMENT
            tokens = write_tokens(folder / name, documents // own_runs)
            written = write_runs(folder / name / "encode", documents, documents // own_runs, tokens=tokens)
            in_process(_mix, folder / name / "mix", written, 100 * MB)
        return in_process(_assemble, folder / "many", folder / "few")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
        used = _usage()
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
        "control_bytes": (len(call_to_json(call)) + len(seal(result))) / len(group),
    }


def _group(folder: Path) -> list[tuple[ShardPlan, ...]]:
    plan = plan_from_dict(json.loads((folder / "mix" / RECEIPT_FILE).read_bytes())["result"]["plan"])
    runs = load_runs(str(folder / LIST_FILE))
    documents = 100 * MB // TOKENS_A_DOCUMENT
    return group_assembled_shards(plan.shards, runs=len(runs), shard_bytes=200 * MB, shard_documents=documents)


def _assemble_group(folder: Path, shards: tuple[ShardPlan, ...]) -> tuple[Task, Figures]:
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


def bench_nothing(work: Path, tasks: int) -> Figures:
    """Run a stage of so many finished tasks, each with a run's receipt: there is nothing to do.

    Returns:
        `wall_s`, `cpu_s`, `reads`, `read_mb`; `results_bytes`, the stage's file of results; the peaks.
    """
    folder = work / "scale"
    try:
        write_runs(folder / "encode", tasks, 1)
        return in_process(_run_stage, folder, tasks) | {
            "results_bytes": (folder / "encode" / RESULTS_FILE).stat().st_size
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_stage(folder: Path, number: int) -> Figures:
    tasks = [Task(f"{index:032x}", None, 0) for index in range(number)]
    (folder / "encode" / tasks[0].digest / RECEIPT_FILE).unlink()  # a stage writes its results after it has run a task
    with closing(LocalExecutor(1)) as executor:
        for ran in (1, 0):
            before = _usage()
            done = Driver(FolderStore(folder), executor, Progress()).run_stage(
                "encode", "tests.benchmarks.scale:write_one", tasks
            )
            if (len(done.results), done.ran) != (number, ran):
                raise RuntimeError(f"{done.ran} of {len(done.results)} tasks ran; expected {ran} of {number}")
    return before()


def write_one(folder: Path, _payload: None, _report: Callable[[int, int], None]) -> Figures:
    """Do the work of a task that has nearly none."""
    return {"documents": 0, "files": {DOCUMENTS_FILE: write_checksummed(folder / DOCUMENTS_FILE, b"")}}


def bench_open(work: Path, shards: int) -> Figures:
    """Open and check a set of so many shards: one small shard's files under many names.

    Returns:
        `manifest_bytes`; `open_s` and `validate_s` (the quick level), processor seconds; the peaks.
    """

    folder = work / "scale"
    try:
        (folder / "one").mkdir(parents=True)
        build_sample_set(folder / "one", copies=1)
        write_copies_of_shard(folder / "one", "train-00000", folder / "many", shards)
        return in_process(_open, folder / "many")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _open(folder: Path) -> Figures:

    before = _usage()
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
        tokens: a file of tokens that every run links to; None: they have no file of tokens, which a mix does not read.
    """

    number = -(-documents // documents_a_run)
    shared = checksum_file(tokens) if tokens else {}
    runs: list[Run] = []
    for index in range(number):
        own = folder / f"{index:032x}"
        own.mkdir(parents=True)
        rows = _draw_documents(index, documents_a_run, documents)
        header = _npy_header(rows)
        files = {DOCUMENTS_FILE: write_checksummed(own / DOCUMENTS_FILE, header + rows.tobytes())}
        if tokens:
            os.link(tokens, own / TOKENS_FILE)
            files[TOKENS_FILE] = dict(shared)
        source = int(np.searchsorted(np.cumsum(WEIGHTS) / sum(WEIGHTS), index / number, "right"))
        label = f"data/part-{index:05d}.parquet@{index:016x}#rg0-1"
        result: Figures = {"labels": [label], "documents": len(rows), "dropped": {}, "files": files}
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


def check_disk(folder: Path, needed: int) -> None:
    """Refuse a size for which the disk has no room, with a tenth to spare.

    Raises:
        TopicSkippedError: there is too little.
    """
    free = shutil.disk_usage(folder).free
    if needed * 1.1 > free:
        raise TopicSkippedError(f"{folder}: {free / 1e9:.1f} GB are free, {needed * 1.1 / 1e9:.1f} GB are needed")


def in_process(function: Callable[..., Figures], *arguments: Any) -> Figures:
    """Call a function in a new process; return its figures with that process's peaks."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_watch, function, arguments).result()


def _watch(function: Callable[..., Figures], arguments: tuple[Any, ...]) -> Figures:
    peaks = {"anonymous_mb": 0.0, "open_files": 0.0}
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(_POLL_SECONDS):
            peaks["anonymous_mb"] = max(peaks["anonymous_mb"], _status("RssAnon") / MB)
            peaks["open_files"] = max(peaks["open_files"], len(os.listdir("/proc/self/fd")))

    thread = threading.Thread(target=poll)
    thread.start()
    os.environ[_POLLER] = str(thread.native_id)
    try:
        figures = function(*arguments)
    finally:
        ended.set()
        thread.join()
    return figures | peaks | {"resident_mb": _status("VmHWM") / MB}


def _status(name: str) -> int:
    """Return bytes of this process from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _count_reads(file: str) -> tuple[int, int]:
    """Return how many reads a process or thread has made, and their bytes."""
    counts = dict(line.split(": ") for line in Path(file).read_text().splitlines())
    return int(counts["syscr"]), int(counts["rchar"])


def _usage() -> Callable[[], Figures]:
    """Start to measure this process; the result ends it: seconds, reads, and bytes read from files."""

    def now() -> tuple[float, float, int, int]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        (reads, size), (own_reads, own_size) = _count_reads("/proc/self/io"), (0, 0)
        if _POLLER in os.environ:
            own_reads, own_size = _count_reads(f"/proc/self/task/{os.environ[_POLLER]}/io")
        return time.perf_counter(), used.ru_utime + used.ru_stime, reads - own_reads, size - own_size

    begun = now()

    def end() -> Figures:
        wall, cpu, reads, size = (after - before for after, before in zip(now(), begun, strict=True))
        return {"wall_s": wall, "cpu_s": cpu, "reads": reads, "read_mb": size / MB}

    return end


def main() -> None:
    """Measure what the flags ask for and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mix", type=int, action="append", default=[], metavar="MILLIONS", help="of documents")
    parser.add_argument("--assemble", type=int, nargs=2, action="append", default=[], metavar=("RUNS", "SHARDS"))
    parser.add_argument("--tasks", type=int, action="append", default=[], metavar="NUMBER", help="with nothing to do")
    parser.add_argument("--shards", type=int, action="append", default=[], metavar="NUMBER", help="to open and check")
    parser.add_argument("--work", type=Path, metavar="DIR", help="scratch (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenmill-scale-", dir=options.work) as folder:
        work = Path(folder)
        if not (options.mix or options.assemble or options.tasks or options.shards):
            print(json.dumps(bench_scale(work), indent=2))
        for millions in options.mix:
            print(json.dumps({"documents": millions * MB} | bench_mix(work, millions * MB)), flush=True)
        for runs, shards in options.assemble:
            print(json.dumps({"runs": runs, "shards": shards} | bench_assemble(work, runs, shards)), flush=True)
        for number in options.tasks:
            print(json.dumps({"tasks": number} | bench_nothing(work, number)), flush=True)
        for number in options.shards:
            print(json.dumps(bench_open(work, number)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
