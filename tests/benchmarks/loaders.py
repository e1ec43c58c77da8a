"""`TokenWindows` through a DataLoader beside a memory map of the same tokens.

Each loader runs in a process of its own, without workers, and they take turns.
"""

import time
from functools import partial
from pathlib import Path

import numpy as np

from shards import open_set
from shards.convert.export import export_set
from shards.format.windows.packed import cut_documents, plan_rows
from tests.benchmarks.build import write_set
from tests.benchmarks.harness import Figures, alternate, run_module

BATCH, SEQ_LEN = 64, 512
ROUNDS = 3
"""Each loader runs this often, in turns, and its best round counts: a shared machine only ever makes it slower."""


def bench_loader(work: Path, quick: bool) -> Figures:
    """Read an epoch of the train split with each loader.

    `first_batch_ms` counts from opening on; `memory_map_ratio` is above 1 if `TokenWindows` is faster by the clock;
    `plan_s` is a processor's time to plan the packed rows of 500,000 documents.
    """
    rounds = 1 if quick else ROUNDS
    shard_set = open_set(write_set(work))
    train = shard_set.splits["train"]
    places = {"tokenmill": work / "set", "memory_map": work / "exports"}
    if not places["memory_map"].exists():
        export_set(shard_set, places["memory_map"], layout="nanogpt", splits=("train",))
    tokens = sum(shard.num_tokens for shard in train)
    samples = tokens // (4 if rounds == 1 else 1) // SEQ_LEN // BATCH * BATCH
    numbers = (samples, BATCH, SEQ_LEN)

    def read(kind: str) -> dict[str, float]:
        return run_module("tests.benchmarks.read_set", kind, places[kind], *numbers, PYTHONWARNINGS="ignore")

    runs = alternate(rounds, {kind: partial(read, kind) for kind in places})
    count = samples * SEQ_LEN
    figures: Figures = {"tokens": count}
    for kind, found in runs.items():
        best = {name: min(run[name] for run in found) for name in found[0]}
        figures[kind] = {
            "tokens_per_s": count / best["seconds"],
            "processor_tokens_per_s": count / best["processor_s"],
            "first_batch_ms": 1000 * best["first_batch_s"],
        }
    lengths = np.random.default_rng(0).lognormal(5.5, 1.2, 500_000).astype(np.int64) + 1
    began = time.process_time()
    plan_rows(np.bincount(cut_documents(lengths, 2048)[2], minlength=2049), 2048)
    figures["plan_s"] = time.process_time() - began
    figures["first_batch_ms"] = figures["tokenmill"]["first_batch_ms"]
    figures["memory_map_ratio"] = figures["tokenmill"]["tokens_per_s"] / figures["memory_map"]["tokens_per_s"]
    return figures
