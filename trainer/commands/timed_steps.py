"""Time training steps of a recipe in this process, as `train` takes them.

The steps are those of `trainer.train` in a real session: the recipe's model, optimizer, precision, compilation and
recomputation, fed from the compressed shards of a small set of made-up tokens, losses fetched as often as in a run.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import math
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, models

from shards.errors import RunError, plural
from shards.format.manifest import dtype_for
from shards.format.writer import write_token_set
from shards.terminal.display import JsonObject
from shards.torch import TokenWindows
from trainer.device import choose_device
from trainer.recipe import TrainRecipe
from trainer.session import Session, open_session
from trainer.train.step import fetch_losses, open_training_windows, take_step

WARMUP = 5
"""Steps that are not timed: they compile, start threads and take memory."""
SET_BATCHES, DOCUMENT_TOKENS = 32, 500
"""Global batches that the made-up set holds, after which it repeats; tokens of a document."""


def write_made_up_set(recipe: TrainRecipe, folder: Path) -> Path:
    """Write the set of the timed steps of `fit --measure`: random tokens, as unevenly frequent as words (Zipf)."""
    vocab_size, train = recipe.model.vocab_size or 0, recipe.train
    eos_id = vocab_size - 1
    tokenizer = Tokenizer(models.BPE({f"{index:x}": index for index in range(eos_id)}, []))
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    documents = SET_BATCHES * train.global_batch * train.seq_len // DOCUMENT_TOKENS + 2
    random = np.random.default_rng(train.seed).random((documents, DOCUMENT_TOKENS))
    ids = (eos_id**random).astype(dtype_for(vocab_size)) - 1
    ids[:, -1] = eos_id
    place = folder / "set"
    write_token_set(
        place,
        {"train": [ids[1:].ravel()], "val": [ids[0]]},
        vocab_size=vocab_size,
        eos_id=eos_id,
        tokenizer=tokenizer.to_str(),
    )
    return place


def time_steps(recipe: TrainRecipe, shards: Path, steps: int) -> JsonObject:
    """Take `WARMUP` steps on a set's first windows, then time `steps`. Call it once per process.

    The clock is CUDA's events, for which nothing waits, or the host's. Peak memory is what torch reserved after the
    warm-up; it is not measured without a GPU.

    Args:
        recipe: what to train; it has a vocabulary's size.
        shards: a set's folder; the run folder is made next to it.
        steps: optimizer steps, at least 1.

    Returns:
        `device`, `precision`, `tokens_per_s`, `mfu` (None if the device's peak is not known), `loss` (mean of all
        steps, in nats), `peak_gb` (None without a GPU).

    Raises:
        InputError: the recipe cannot run here, as with `train`.
        RunError: the loss is not finite.
        torch.OutOfMemoryError: the GPU's memory is too small.
    """
    # The made-up text is scored by nothing.
    recipe = recipe.with_values(eval=recipe.eval.with_values(sets=[], tasks=[], prompts=[]))
    train, device = recipe.train, choose_device(recipe.train.device)
    steps_in_all = WARMUP + steps
    cuda, marks = torch.cuda if device.type == "cuda" else None, list[Any]()

    def mark() -> None:
        marks.append(cuda.Event(enable_timing=True) if cuda else time.perf_counter())
        if cuda:
            marks[-1].record()  # on the GPU's stream, which runs behind the host
            if len(marks) == WARMUP:
                cuda.reset_peak_memory_stats()

    # Take the steps.
    stop = steps_in_all * train.global_batch
    with (
        closing(open_session(recipe, shards, shards.with_name("run"), say=lambda line: None)) as session,
        open_training_windows(session.shard_set, train, stop=stop) as windows,
    ):
        records = take_our_steps(session, windows, steps_in_all, mark)
    loss = statistics.fmean(record["loss"] for record in records)
    if not math.isfinite(loss):
        raise RunError(f"the mean loss is {loss}; expected a finite one. Lower optimizer.lr")

    # Speed and peak memory of the timed steps.
    if cuda:
        cuda.synchronize()
    began, ended = marks[WARMUP - 1], marks[-1]
    seconds = began.elapsed_time(ended) / 1000 if cuda else ended - began
    speed = steps * train.global_batch * train.seq_len / seconds
    peak = session.peak_tokens_per_s
    return {
        "device": cuda.get_device_name() if cuda else f"CPU, {plural(torch.get_num_threads(), 'thread')}",
        "precision": session.precision,
        "tokens_per_s": round(speed),
        "mfu": speed / peak if peak else None,
        "loss": loss,
        "peak_gb": cuda.max_memory_reserved() / 1e9 if cuda else None,
    }


def take_our_steps(session: Session, windows: TokenWindows, steps: int, mark: Callable[[], None]) -> list[JsonObject]:
    """Take steps to time as a run does and return their records; `mark` is called after each."""
    records: list[JsonObject] = []
    fetched = 0
    for step in range(1, steps + 1):
        records.append(take_step(session, windows))
        mark()
        if step % session.recipe.train.log_every == 0 or step == steps:
            fetch_losses(session, records[fetched:])
            fetched = step
    return records
