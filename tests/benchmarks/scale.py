"""What mixing, assembling and opening cost with as many documents, runs and shards as a large corpus has.

The runs are synthetic: real receipts, checksums, sorted hashes and lengths, and no text. Every measurement is a process
of its own; its seconds are processor seconds where others share the machine, its peaks are the kernel's.

    python -m tests.benchmarks.scale [--mix DOCUMENTS]... [--assemble RUNS SHARDS] [--shards NUMBER] [--work DIR]

Without flags it runs what `make bench` does. 200 million documents take 7.2 GB of disk and about four minutes.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.benchmarks.material import MB, TopicSkippedError

if TYPE_CHECKING:
    from pipeline.encode.run import Run
    from pipeline.recipe.schema import Recipe

Figures = dict[str, Any]

DOCUMENTS_A_RUN = 62_500
"""A unit of 64 MB with the usual kilobyte a document."""
TOKENS_A_DOCUMENT = 1000
WEIGHTS = (87, 10, 3)
COPIES = 0.05
"""The share of the documents that are drawn from few, and so have copies in other runs and sources."""
_POLL_SECONDS = 0.02


def bench_scale(work: Path, *, quick: bool = False) -> Figures:
    """Measure small sizes of everything: a minute, or a few seconds with `quick`."""
    few, many = (500_000, 1_000_000) if quick else (4_000_000, 8_000_000)
    small, large = (bench_mix(work, documents) for documents in (few, many))
    figures = {f"mix_{few // MB}m_{name}": value for name, value in small.items()}
    figures |= {f"mix_{many // MB}m_{name}": value for name, value in large.items()}
    figures["mix_growth"] = large["cpu_s"] / small["cpu_s"] / (many / few)
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
        runs = write_runs(folder / "encode", documents, DOCUMENTS_A_RUN)
        return {"runs": len(runs)} | in_process(_mix, folder / "mix", runs, documents)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _mix(folder: Path, runs: list[Run], documents: int) -> Figures:
    from pipeline.encode.run import RunList
    from pipeline.engine.receipts import RECEIPT_FILE, write_receipt
    from pipeline.mix.cuts import MixTask, mix_runs
    from shards.stores.store import FolderStore

    folder.mkdir()
    shard_tokens = min(100 * MB, documents * TOKENS_A_DOCUMENT // 20)
    before = _usage()
    listed = RunList(FolderStore(folder.parent), runs)
    listed.write()
    result = mix_runs(folder, MixTask(make_recipe(shard_tokens), (), listed.address), None)
    write_receipt(folder, result)
    return before() | {
        "receipt_bytes": (folder / RECEIPT_FILE).stat().st_size,
        "files_bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "shards": len(result["plan"]["shards"]),
    }


def make_recipe(shard_tokens: int) -> Recipe:
    """Return a recipe of three sources, 87/10/3, which takes all that they have."""
    from pipeline.recipe.schema import Recipe

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
    from pipeline.encode.run import DOCUMENTS_FILE, TOKENS_FILE, Run
    from pipeline.engine.checksums import checksum_file, write_checksummed
    from pipeline.engine.receipts import write_receipt

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
        write_receipt(own, {"labels": [label], "documents": len(rows), "dropped": {}, "files": files})
        runs.append(Run(str(own), source, "<u2"))
    return runs


def _draw_documents(seed: int, number: int, total: int) -> Any:
    """Return the sorted rows of one run; some are of the few that are drawn again and again."""
    from pipeline.encode.run import DOCUMENT_DTYPE

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
    import io

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


def _usage() -> Callable[[], Figures]:
    """Start to measure this process; the result ends it: seconds, reads, and bytes read from files."""

    def now() -> tuple[float, float, int, int]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return time.perf_counter(), used.ru_utime + used.ru_stime, int(counts["syscr"]), int(counts["rchar"])

    begun = now()

    def end() -> Figures:
        wall, cpu, reads, size = (after - before for after, before in zip(now(), begun, strict=True))
        return {"wall_s": wall, "cpu_s": cpu, "reads": reads, "read_mb": size / MB}

    return end


def main() -> None:
    """Measure what the flags ask for and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mix", type=int, action="append", default=[], metavar="MILLIONS", help="of documents")
    parser.add_argument("--work", type=Path, metavar="DIR", help="scratch (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenmill-scale-", dir=options.work) as folder:
        work = Path(folder)
        if not options.mix:
            print(json.dumps(bench_scale(work), indent=2))
        for millions in options.mix:
            print(json.dumps({"documents": millions * MB} | bench_mix(work, millions * MB)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
