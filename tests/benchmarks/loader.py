"""How fast the loader reads compressed shards, beside a memory map of the same tokens; how long steps wait for a Hub.

The memory map is nanoGPT's `get_batch`: random offsets into a plain file of tokens, one slice a row, stacked. Its file
is decompressed first, outside the timing, and lies in the page cache; its map is opened once. The loader decompresses
as it goes and gives every window exactly once. Both yield int64 inputs and targets of one shape.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

from shards import open_set
from shards.convert.import_.import_set import ImportOptions, import_set
from shards.format.manifest import Split
from shards.format.windows.order import order_split
from shards.torch import TokenWindows
from tests.benchmarks.build import write_set
from tests.benchmarks.harness import Figures, alternate, run_python, serve, timed
from trainer.commands.bench_steps import write_made_up_set
from trainer.metrics import read_metrics
from trainer.recipe import load_train_recipe

ROUNDS = 5
"""Each side is timed this often, in turns, and its best round counts: a shared machine only ever makes it slower."""
MIN_TOKENS = 20_000_000
"""A round reads whole epochs until it has at least this many."""
BATCH, SEQ_LEN = 64, 512


def bench_loader(work: Path, quick: bool) -> Figures:
    """Time the loader over whole epochs of the train split, and the memory map over as many batches.

    `ratio` is above 1 if the loader is faster; `wait_max_ms` is the longest that a batch let its caller wait: the first
    frames of a shard.
    """
    del quick
    shard_set = open_set(write_set(work))
    order = order_split(shard_set, seq_len=SEQ_LEN, seed=1)
    samples = -(-MIN_TOKENS // order.targets) * order.per_epoch // BATCH * BATCH
    plain = work / "loader-plain.bin"
    decoding = 0.0
    with plain.open("wb") as file:
        for shard in shard_set.splits["train"]:
            usage, tokens = timed(shard.read)
            decoding += usage.seconds
            tokens.tofile(file)

    def open_windows() -> TokenWindows:
        return TokenWindows(shard_set, seq_len=SEQ_LEN, seed=1, samples=samples)

    sides = {
        "loader": lambda: _read_all(open_windows()),
        "dataloader": lambda: _read_with_dataloader(open_windows()),
        "memmap": lambda: _read_memory_map(plain, shard_set.dtype, samples),
    }
    found = alternate(ROUNDS, {name: partial(timed, side) for name, side in sides.items()})
    plain.unlink()
    best = {name: min(usage.seconds for usage, _ in runs) for name, runs in found.items()}
    tokens = samples * SEQ_LEN
    return {
        "tokens": tokens,
        **{f"{name}_tokens_per_s": tokens / seconds for name, seconds in best.items()},
        "ratio": best["memmap"] / best["loader"],
        "decode_tokens_per_s": sum(shard.num_tokens for shard in shard_set.splits["train"]) / decoding,
        "loader_batch_ms": 1000 * best["loader"] * BATCH / samples,
        "wait_max_ms": 1000 * min(longest for _, longest in found["loader"]),
    }


def _read_all(windows: TokenWindows) -> float:
    """Read all batches; return the seconds of the slowest."""
    longest = 0.0
    with windows:
        for first in range(0, len(windows), BATCH):
            asked = time.perf_counter()
            windows.read(range(first, first + BATCH))
            longest = max(longest, time.perf_counter() - asked)
    return longest


def _read_with_dataloader(windows: TokenWindows) -> float:
    with windows:
        for _ in DataLoader(windows, batch_size=BATCH):  # in this process, which stacks samples
            pass
    return 0.0


def _read_memory_map(plain: Path, dtype: np.dtype, samples: int) -> float:
    """Read as many batches. Source: get_batch in karpathy/nanoGPT's train.py."""
    generator = torch.Generator().manual_seed(1)
    data = np.memmap(plain, dtype=dtype, mode="r")
    for _ in range(0, samples, BATCH):
        ix = torch.randint(len(data) - SEQ_LEN, (BATCH,), generator=generator)
        _inputs = torch.stack([torch.from_numpy(data[i : i + SEQ_LEN].astype(np.int64)) for i in ix])
        _targets = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + SEQ_LEN].astype(np.int64)) for i in ix])
    return 0.0


SHARD_TOKENS, STEPS = 100_000, 500
LATENCY_MS = 20
"""Of every answer of the Hub. A shard of 100,000 tokens makes latency count a thousand times as much as a usual one."""


def bench_remote_loader(work: Path, quick: bool) -> Figures:
    """Train the demo's model on small shards of made-up tokens, from disk and from a Hub on loopback, the cache empty.

    The Hub is a process of its own, on the same cores. The first step waits for the first shard, and is left out.
    `..._loader_share` is the share of all steps' time that waits for the loader.
    """
    recipe = load_train_recipe(Path("demo"), ["model.vocab_size=8192"])
    large = recipe.train.model_copy(update={"global_batch": 256})  # so that the made-up set holds a million tokens
    folder = work / "remote"
    folder.mkdir()
    write_made_up_set(recipe.model_copy(update={"train": large}), folder)
    bins: dict[Split, Sequence[Path]] = {"train": [folder / "train.bin"], "val": [folder / "val.bin"]}
    repo = folder / "root" / "bench" / "set"
    options = ImportOptions(name="made-up", shard_tokens=SHARD_TOKENS)
    import_set(bins, tokenizer=folder / "tokenizer.json", out=repo, options=options)
    settings = ["phases=[]", "train.log_every=1", "eval.every_steps=1000000"]
    settings.append(f"train.steps={STEPS // 2 if quick else STEPS}")
    figures: Figures = {}
    with serve("tests.support.servers.hub", "--root", folder / "root", "--latency-ms", LATENCY_MS) as url:
        for name, place in (("disk", str(repo)), ("hub", "hf://datasets/bench/set")):
            run = folder / name
            command = ["-m", "trainer", "train", "demo", "--shards", place, "--run", str(run), "--go-on"]
            command += ["--cache", str(folder / "cache"), *(f"--set={setting}" for setting in settings)]
            run_python(command, python=sys.executable, HF_ENDPOINT=url, HF_HUB_DISABLE_XET="1")
            records = [record for record in read_metrics(run) if "loss" in record and record["step"] > 1]
            waits = [record["data_wait_ms"] / 1000 for record in records]
            tokens = recipe.train.global_batch * recipe.train.seq_len
            seconds = sum(tokens / record["tokens_per_s"] for record in records)
            figures |= {
                f"{name}_loader_share": sum(waits) / seconds,
                f"{name}_longest_wait_ms": 1000 * max(waits),
                f"{name}_tokens_per_s": tokens * len(records) / seconds,
            }
    return figures
