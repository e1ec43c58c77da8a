"""What mixing costs with as many documents and runs as a large corpus has.

The runs are synthetic: real receipts, checksums, sorted hashes and lengths, and no text. Every measurement is a process
of its own; its seconds are processor seconds where others share the machine, its peaks are the kernel's.

The sizes are constants, for `--set`: 200 million documents take 7.2 GB of disk and about four minutes.
"""

import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.encode.encode import EncodeResult
from pipeline.encode.run import DOCUMENT_DTYPE, DOCUMENTS_FILE, TOKENS_FILE, Run, RunList
from pipeline.engine.checksums import WrittenFile, write_checksummed
from pipeline.engine.receipts import RECEIPT_FILE, write_receipt
from pipeline.mix.cuts import MixTask, mix_runs
from shards.stores.store import FolderStore
from tests.benchmarks.harness import MB, Figures, TopicSkippedError, in_process, remove
from tests.support.runs import make_recipe

DOCUMENTS_A_RUN = 62_500
"""A unit of 64 MB with the usual kilobyte a document."""
TOKENS_A_DOCUMENT = 1000
WEIGHTS = (87, 10, 3)
MIX_DOCUMENTS = (4_000_000, 8_000_000)
LIST_FILE = "runs.json"
COPIES = 0.05
"""The share of the documents that are drawn from few, and so have copies in other runs and sources."""


def bench_scale(work: Path, quick: bool) -> Figures:
    """Measure mixes of two sizes."""
    few, many = (number // 8 if quick else number for number in MIX_DOCUMENTS)
    small, large = (_bench_mix(work, documents) for documents in (few, many))
    figures = {f"mix_{few}_{name}": value for name, value in small.items()}
    figures |= {f"mix_{many}_{name}": value for name, value in large.items()}
    return figures | {"mix_growth": large["cpu_s"] / small["cpu_s"] / (many / few)}


def _bench_mix(work: Path, documents: int) -> Figures:
    """Mix synthetic runs of three sources into shards of 100 million tokens."""
    needed, free = documents * 40 * 1.1, shutil.disk_usage(work).free
    if needed > free:
        raise TopicSkippedError(f"{work}: {free / 1e9:.1f} GB are free, {needed / 1e9:.1f} GB are needed")
    folder = work / "scale"
    runs = write_runs(folder / "encode", documents, min(DOCUMENTS_A_RUN, documents // 50))
    listed = RunList(FolderStore(folder), runs)
    listed.name, listed.address = LIST_FILE, str(folder / LIST_FILE)
    listed.write()
    shard_tokens = min(100 * MB, documents * TOKENS_A_DOCUMENT // 20)
    figures = in_process(_mix, folder / "mix", listed.address, shard_tokens)
    remove(work, "scale")
    return {"runs": len(runs)} | figures


def _mix(folder: Path, address: str, shard_tokens: int) -> Figures:
    folder.mkdir()
    recipe = make_recipe(WEIGHTS, val_tokens=shard_tokens // 10, shard_tokens=shard_tokens, when_short="shrink")
    result = mix_runs(folder, MixTask(recipe, address), None)
    write_receipt(folder, result)
    return {
        "receipt_bytes": (folder / RECEIPT_FILE).stat().st_size,
        "files_bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "shards": len(result.plan.shards) if result.plan else 0,
    }


def write_runs(folder: Path, documents: int, documents_a_run: int) -> list[Run]:
    """Write runs as the encode stage does to its folder, without text; tokens are a hole, which a mix does not read."""
    number = -(-documents // documents_a_run)
    runs: list[Run] = []
    for index in range(number):
        own = folder / f"{index:032x}"
        own.mkdir(parents=True)
        rows = _draw_documents(index, documents_a_run, documents)
        buffer = io.BytesIO()
        np.save(buffer, rows)
        files = {DOCUMENTS_FILE: write_checksummed(own / DOCUMENTS_FILE, buffer.getvalue())}
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
