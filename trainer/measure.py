"""A trainer's steps on a recipe, timed in this process.

Ours are steps of `trainer.train` in a real session: the recipe's model, optimizer, precision, compilation and
recomputation, fed from the compressed shards of a small set of made-up tokens, losses fetched as often as in a run.

Times are those of CUDA events, for which nothing waits; the first steps, which compile, count for `warmup_s` alone.
Peak memory is torch's own (`max_memory_allocated`, after the warm-up); without a GPU, what the process's resident
memory grew by at its peak (Linux).
"""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, models

from shards.imports.import_set import ImportOptions, import_set
from trainer.data import Loader
from trainer.device import choose_device, choose_precision, peak_flops
from trainer.model import flops_per_token
from trainer.session import Session, open_session
from trainer.train import fetch_losses, take_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shards.manifest import Split
    from trainer.config import TrainRecipe

SET_BATCHES, DOCUMENT_TOKENS = 32, 500
"""Global batches that the made-up set holds, after which it repeats; tokens of a document."""


def write_made_up_set(recipe: TrainRecipe, folder: Path) -> Path:
    """Write a set of random tokens, about as unevenly frequent as words (Zipf), so that the loss can fall."""
    eos_id = (recipe.model.vocab_size or 0) - 1
    tokenizer = Tokenizer(models.BPE({f"{index:x}": index for index in range(eos_id)}, []))
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    random = np.random.default_rng(recipe.train.seed)
    bins: dict[Split, Sequence[Path]] = {"train": [folder / "train.bin"], "val": [folder / "val.bin"]}
    sizes = SET_BATCHES * recipe.train.global_batch * recipe.train.seq_len + 1, DOCUMENT_TOKENS
    for (path,), size in zip(bins.values(), sizes, strict=True):
        ids = (eos_id ** random.random(size)).astype("<u2" if eos_id < 1 << 16 else "<u4") - 1
        ids[DOCUMENT_TOKENS - 1 :: DOCUMENT_TOKENS] = ids[-1] = eos_id
        ids.tofile(path)
    options = ImportOptions(name="made-up")
    import_set(bins, tokenizer=folder / "tokenizer.json", out=folder / "set", options=options)
    return folder / "set"


def measure(trainer: str, recipe: TrainRecipe, shards: Path, steps: int, warmup: int) -> dict[str, Any]:
    """Take steps under a trainer in this process; return where it ran and its figures, or its `error`."""
    take = measure_our_steps
    if trainer == "transformers":
        from trainer.beside import measure_their_steps as take
    device = choose_device(recipe.train.device)
    cuda = torch.cuda if device.type == "cuda" else None
    figures: dict[str, Any] = {
        "device": cuda.get_device_name(device) if cuda else f"CPU, {torch.get_num_threads()} threads",
        "device_memory": cuda.get_device_properties(device).total_memory if cuda else None,
        "precision": choose_precision(recipe.train.precision, device),
    }
    resident, marks = _resident("VmRSS"), list[Any]()

    def mark() -> None:
        if cuda and len(marks) == warmup:
            cuda.reset_peak_memory_stats(device)
        marks.append(cuda.Event(enable_timing=True) if cuda else time.perf_counter())
        if cuda:
            marks[-1].record()

    # A GPU's stream runs behind the host: its events tell when a step ended there.
    try:
        records = take(recipe, shards, warmup + steps, mark)
    except torch.OutOfMemoryError:
        return figures | {"error": "out of memory"}
    except Exception as error:
        if trainer == "ours":
            raise
        return figures | {"error": repr(error)}  # ours are not lost because theirs failed
    if cuda:
        cuda.synchronize(device)
    seconds = [a.elapsed_time(b) / 1000 if cuda else b - a for a, b in itertools.pairwise(marks)]
    timed, train = seconds[warmup:], recipe.train
    waits = [record["data_wait_ms"] for record in records[warmup:] if "data_wait_ms" in record]
    speed = steps * train.global_batch * train.seq_len / sum(timed)
    peak = peak_flops(device, recipe.cost.peak_tflops)
    flops = flops_per_token(recipe.model, recipe.model.vocab_size or 0, train.seq_len)
    return figures | {
        "tokens_per_s": speed,
        "mfu": speed * flops / peak if peak else None,
        "step_ms": 1000 * statistics.median(timed),
        "fastest_ms": 1000 * min(timed),
        "slowest_ms": 1000 * max(timed),
        "peak_memory": cuda.max_memory_allocated(device) if cuda else _resident("VmHWM") - resident,
        "reserved_memory": cuda.max_memory_reserved(device) if cuda else None,
        "loss_first": records[0]["loss"],
        "loss_last": records[-1]["loss"],
        "data_wait_ms": statistics.median(waits) if waits else None,
        "warmup_s": sum(seconds[:warmup]),
    }


def _resident(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{field}:"))


def measure_our_steps(recipe: TrainRecipe, shards: Path, steps: int, mark: Callable[[], None]) -> list[dict[str, Any]]:
    """Take steps on a set's first samples in a session of their own; return their records."""
    session = open_session(recipe, shards, shards.with_name("run"), resume="never", say=lambda line: None)
    try:
        with Loader(session.shard_set.splits["train"], session.order) as loader:
            return take_our_steps(session, loader, steps, mark)
    finally:
        session.close()


def take_our_steps(session: Session, loader: Loader, steps: int, mark: Callable[[], None]) -> list[dict[str, Any]]:
    """Take steps as a run does and return their records; `mark` is called before the first and after each."""
    mark()
    records: list[dict[str, Any]] = []
    fetched = 0
    for step in range(1, steps + 1):
        records.append(take_step(session, loader))
        mark()
        if step % session.recipe.train.log_every == 0 or step == steps:
            fetch_losses(session, records[fetched:])
            fetched = step
    return records
