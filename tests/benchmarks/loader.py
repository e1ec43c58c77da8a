"""Measure how fast the loader reads compressed shards, compared with a memory map of the same tokens, in one run.

    python -m tests.benchmarks.loader DIR

and how long training steps wait for shards from a Hub on loopback, compared with the same shards on disk.

The memory map is nanoGPT's `get_batch`: random offsets into a plain file of tokens, one slice a row, stacked. Its file
is decompressed first, outside the timing, and lies in the page cache; its map is opened once. The loader decompresses
as it goes and gives every window exactly once. Both yield int64 inputs and targets of one shape.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

import shards
from shards.convert.import_.import_set import ImportOptions, import_set
from shards.format.manifest import Split
from shards.format.windows.order import order_split
from shards.torch import TokenWindows
from tests.benchmarks.hub import serve_hub
from trainer.commands.bench_steps import write_made_up_set
from trainer.metrics import read_metrics
from trainer.recipe import load_train_recipe

ROUNDS = 5
"""Each side is timed this often, in turns, and its best round counts: a shared machine only ever makes it slower."""

MIN_TOKENS = 20_000_000
"""A round reads whole epochs until it has at least this many."""


def bench_loader(
    set_path: str | Path, *, work: str | Path, batch: int = 64, seq_len: int = 512
) -> dict[str, float | int]:
    """Time the loader over whole epochs of the train split, and the memory map over as many batches.

    Args:
        set_path: a shard set.
        work: a folder for the decompressed tokens, which are removed again.
        batch: sequences in a batch.
        seq_len: tokens in a sequence.

    Returns:
        `tokens` a round, `loader_tokens_per_s` of `TokenWindows.read`, `dataloader_tokens_per_s` of a DataLoader over
        the same windows, `memmap_tokens_per_s`, their `ratio` (above 1: the loader is faster),
        `decode_tokens_per_s` (plain decompression, one thread), `loader_batch_ms`, and `wait_max_ms`, the longest
        that a batch let its caller wait: the first frames of a shard.

    Raises:
        ValueError: the set's train split is too small for one batch.
    """
    shard_set = shards.open_set(set_path)
    train = shard_set.splits["train"]
    order = order_split(shard_set, seq_len=seq_len, seed=1)
    if order.per_epoch < batch:
        raise ValueError(f"{set_path}: {order.per_epoch} windows of {seq_len}; expected at least one batch of {batch}")
    samples = -(-MIN_TOKENS // order.targets) * order.per_epoch // batch * batch
    plain = Path(work) / "loader-plain.bin"
    decoding = 0.0
    with plain.open("wb") as file:
        for shard in train:
            began = time.perf_counter()
            tokens = shard.read()
            decoding += time.perf_counter() - began
            tokens.tofile(file)
    ours: list[tuple[float, float]] = []
    loaders: list[float] = []
    theirs: list[float] = []
    try:
        for _ in range(ROUNDS):
            options = {"seq_len": seq_len, "seed": 1, "samples": samples}
            ours.append(_time_reads(TokenWindows(shard_set, **options), batch))
            loaders.append(_time_dataloader(TokenWindows(shard_set, **options), batch))
            theirs.append(_time_memory_map(plain, shard_set.dtype, samples, batch, seq_len))
    finally:
        plain.unlink()
    tokens = samples * seq_len
    seconds, longest = min(ours)
    return {
        "tokens": tokens,
        "loader_tokens_per_s": tokens / seconds,
        "dataloader_tokens_per_s": tokens / min(loaders),
        "memmap_tokens_per_s": tokens / min(theirs),
        "ratio": min(theirs) / seconds,
        "decode_tokens_per_s": sum(shard.num_tokens for shard in train) / decoding,
        "loader_batch_ms": 1000 * seconds * batch / samples,
        "wait_max_ms": 1000 * longest,
    }


def _time_reads(windows: TokenWindows, batch: int) -> tuple[float, float]:
    """Return the seconds for all batches, the reader's start included, and for the slowest batch."""
    began, longest = time.perf_counter(), 0.0
    with windows:
        for first in range(0, len(windows), batch):
            asked = time.perf_counter()
            windows.read(range(first, first + batch))
            longest = max(longest, time.perf_counter() - asked)
    return time.perf_counter() - began, longest


def _time_dataloader(windows: TokenWindows, batch: int) -> float:
    """Return the seconds for all batches through a DataLoader in this process, which stacks samples."""
    began = time.perf_counter()
    with windows:
        for _ in DataLoader(windows, batch_size=batch):
            pass
    return time.perf_counter() - began


def _time_memory_map(plain: Path, dtype: np.dtype, samples: int, batch: int, seq_len: int) -> float:
    """Return the seconds for all batches. Source: get_batch in karpathy/nanoGPT's train.py."""
    generator = torch.Generator().manual_seed(1)
    began = time.perf_counter()
    data = np.memmap(plain, dtype=dtype, mode="r")
    for _ in range(0, samples, batch):
        ix = torch.randint(len(data) - seq_len, (batch,), generator=generator)
        _inputs = torch.stack([torch.from_numpy(data[i : i + seq_len].astype(np.int64)) for i in ix])
        _targets = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + seq_len].astype(np.int64)) for i in ix])
    return time.perf_counter() - began


SHARD_TOKENS, STEPS = 100_000, 500
LATENCY_MS = 20
"""Of every answer of the Hub. A shard of 100,000 tokens makes latency count a thousand times as much as a usual one."""


def bench_remote_loader(work: Path, *, quick: bool = False) -> dict[str, float]:
    """Train the demo's model on small shards of made-up tokens, from disk and from a Hub on loopback, the cache empty.

    The Hub is a process of its own, on the same cores. The first step waits for the first shard, and is left out.

    Returns:
        For `disk` and `hub`: `..._loader_share`, the share of all steps' time that waits for the loader;
        `..._longest_wait_ms` of one step; and `..._tokens_per_s`.
    """
    steps = STEPS // 2 if quick else STEPS
    recipe = load_train_recipe(Path("demo"), ["model.vocab_size=8192"])
    large = recipe.train.model_copy(update={"global_batch": 256})  # so that the made-up set holds a million tokens
    folder = work / "remote"
    folder.mkdir()
    write_made_up_set(recipe.model_copy(update={"train": large}), folder)
    bins: dict[Split, Sequence[Path]] = {"train": [folder / "train.bin"], "val": [folder / "val.bin"]}
    repo = folder / "root" / "bench" / "set"
    options = ImportOptions(name="made-up", shard_tokens=SHARD_TOKENS)
    import_set(bins, tokenizer=folder / "tokenizer.json", out=repo, options=options)
    figures: dict[str, float] = {}
    with serve_hub(folder / "root", "--latency-ms", str(LATENCY_MS)) as url:
        for name, place in (("disk", str(repo)), ("hub", "hf://datasets/bench/set")):
            run = folder / name
            settings = ["phases=[]", f"train.steps={steps}", "train.log_every=1", "eval.every_steps=1000000"]
            command = [sys.executable, "-m", "trainer", "train", "demo", "--shards", place, "--run", str(run)]
            command += ["--go-on", "--cache", str(folder / "cache")] + [f"--set={setting}" for setting in settings]
            environment = {**os.environ, "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1"}
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
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


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        for name, value in bench_loader(sys.argv[1], work=folder).items():
            print(f"{name:>22}  {value:,.2f}")
