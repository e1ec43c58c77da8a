"""Time training steps of a recipe in this process, with our trainer or with transformers' Trainer.

Ours are steps of `trainer.train` in a real session: the recipe's model, optimizer, precision, compilation and
recomputation, fed from the compressed shards of a small set of made-up tokens, losses fetched as often as in a run.

Theirs train LlamaForCausalLM or GPT2LMHeadModel as `export` describes them, with the weights that ours begins with, the
same windows in the same order (at hand in memory), micro-batch, learning rates and fused AdamW: in fp32 the losses are
equal. What makes it fast is on: SDPA, and bf16 and torch.compile if ours has them; its check of every loss for NaN,
which waits for the GPU, is off. It knows no `document_mask` and no Muon, and recomputes everything if ours is
`selective`; in bf16 its residual stream is fp32.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import importlib
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, models

from shards import open_set
from shards.convert.import_.import_set import ImportOptions, import_set
from shards.errors import RunError, plural
from shards.format.manifest import Split, dtype_for
from shards.terminal.display import say
from shards.torch import TokenWindows
from shards.torch.windows import Sample
from trainer.commands.export import describe_export_files, export_weights
from trainer.device import choose_device, choose_precision, peak_flops
from trainer.model.decoder import build_model
from trainer.model.size import flops_per_token
from trainer.optim import build_optimizers, learning_rate
from trainer.recipe import TrainRecipe
from trainer.session import Session, open_session
from trainer.train.step import fetch_losses, take_step
from trainer.training_windows import open_training_windows

WARMUP = 5
"""Steps that are not timed: they compile, start threads and take memory."""
SET_BATCHES, DOCUMENT_TOKENS = 32, 500
"""Global batches that the made-up set holds, after which it repeats; tokens of a document."""


def write_made_up_set(recipe: TrainRecipe, folder: Path) -> Path:
    """Write the set that `bench` steps through: random tokens, about as unevenly frequent as words (Zipf)."""
    vocab_size, train = recipe.model.vocab_size or 0, recipe.train
    eos_id = vocab_size - 1
    tokenizer = Tokenizer(models.BPE({f"{index:x}": index for index in range(eos_id)}, []))
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    documents = SET_BATCHES * train.global_batch * train.seq_len // DOCUMENT_TOKENS + 2
    random = np.random.default_rng(train.seed).random((documents, DOCUMENT_TOKENS))
    ids = (eos_id**random).astype(dtype_for(vocab_size)) - 1
    ids[:, -1] = eos_id
    ids[0].tofile(folder / "val.bin")
    ids[1:].tofile(folder / "train.bin")
    bins: dict[Split, Sequence[Path]] = {"train": [folder / "train.bin"], "val": [folder / "val.bin"]}
    import_set(bins, tokenizer=folder / "tokenizer.json", out=folder / "set", options=ImportOptions(name="made-up"))
    return folder / "set"


def time_steps(trainer: str, recipe: TrainRecipe, shards: Path, steps: int) -> dict[str, Any]:
    """Take `WARMUP` steps on a set's first windows, then time `steps`. Call it once per process.

    The clock is CUDA's events, for which nothing waits, or the host's. Peak memory is what torch allocated after the
    warm-up; without a GPU, what the process's resident memory grew by at its peak (Linux).

    Args:
        trainer: `ours` or `transformers`.
        recipe: what to train; it has a vocabulary's size.
        shards: a set's folder; our trainer makes a run folder next to it.
        steps: optimizer steps, at least 1.

    Returns:
        `device`, `precision`, `tokens_per_s`, `mfu` (None if the device's peak is not known), `loss` (mean of all
        steps, in nats), `peak_gb`.

    Raises:
        InputError: the recipe cannot run here, as with `train`.
        RunError: the loss is not finite.
        torch.OutOfMemoryError: the GPU's memory is too small.
    """
    # Prepare the clock and the counters of memory.
    train, device = recipe.train, choose_device(recipe.train.device)
    vocab_size, steps_in_all = recipe.model.vocab_size or 0, WARMUP + steps
    cuda, marks = torch.cuda if device.type == "cuda" else None, list[Any]()
    if trainer == "transformers":
        importlib.import_module("transformers.trainer")  # code is not what is measured
    resident = _resident("VmRSS")

    def mark() -> None:
        marks.append(cuda.Event(enable_timing=True) if cuda else time.perf_counter())
        if cuda:
            marks[-1].record()  # on the GPU's stream, which runs behind the host
            if len(marks) == WARMUP:
                cuda.reset_peak_memory_stats()

    # Take the steps.
    shard_set = open_set(shards)
    with open_training_windows(shard_set, train, stop=steps_in_all * train.global_batch) as windows:
        if trainer == "ours":
            with closing(open_session(recipe, shards, shards.with_name("run"), resume="never", say=say)) as session:
                records = take_our_steps(session, windows, steps_in_all, mark)
            loss = statistics.fmean(record["loss"] for record in records)
        else:
            batch = windows.read(range(steps_in_all * train.global_batch))
            loss = take_their_steps(build_theirs(recipe, vocab_size), recipe, batch, mark)
    if not math.isfinite(loss):
        raise RunError(f"the mean loss is {loss}; expected a finite one. Lower optimizer.lr")

    # Speed and peak memory of the timed steps.
    if cuda:
        cuda.synchronize()
    began, ended = marks[WARMUP - 1], marks[-1]
    seconds = began.elapsed_time(ended) / 1000 if cuda else ended - began
    speed = steps * train.global_batch * train.seq_len / seconds
    peak = peak_flops(device, recipe.cost.peak_tflops)
    return {
        "device": cuda.get_device_name() if cuda else f"CPU, {plural(torch.get_num_threads(), 'thread')}",
        "precision": choose_precision(train.precision, device),
        "tokens_per_s": round(speed),
        "mfu": speed * flops_per_token(recipe.model, vocab_size, train.seq_len) / peak if peak else None,
        "loss": loss,
        "peak_gb": (cuda.max_memory_allocated() if cuda else _resident("VmHWM") - resident) / 1e9,
    }


def _resident(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{field}:"))


def take_our_steps(
    session: Session, windows: TokenWindows, steps: int, mark: Callable[[], None]
) -> list[dict[str, Any]]:
    """Take steps as a run does and return their records; `mark` is called after each."""
    records: list[dict[str, Any]] = []
    fetched = 0
    for step in range(1, steps + 1):
        records.append(take_step(session, windows))
        mark()
        if step % session.recipe.train.log_every == 0 or step == steps:
            fetch_losses(session, records[fetched:])
            fetched = step
    return records


def build_theirs(recipe: TrainRecipe, vocab_size: int) -> Any:
    """Build the model that `bench` compares steps with: the recipe's, of transformers, with our initial weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = describe_export_files(recipe.model, vocab_size, 0, {"eos": 0}, "float32")["config.json"]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="sdpa")
    weights = build_model(recipe.model, vocab_size, seed=recipe.train.seed).state_dict()
    # If the head is tied, transformers lists it once more.
    strict = not recipe.model.tie_word_embeddings
    model.load_state_dict(export_weights(weights, recipe.model, vocab_size), strict=strict)
    return model


def take_their_steps(model: Any, recipe: TrainRecipe, batch: Sample, mark: Callable[[], None]) -> float:
    """Take the steps of transformers to time: train on windows in their order.

    Args:
        model: from `build_theirs`.
        recipe: batches and the optimizer's settings.
        batch: `input_ids` and `labels` of all steps, int64 `(steps * global_batch, seq_len)`.
        mark: called after each step.

    Returns:
        The mean loss of the steps, in nats.
    """
    from transformers import ProgressCallback, Trainer, TrainerCallback, TrainingArguments

    class Marks(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            mark()

    train, device = recipe.train, choose_device(recipe.train.device)
    # Shifted as ours are: no target is lost.
    pairs = zip(batch["input_ids"], batch["labels"], strict=True)
    rows: Any = [{"input_ids": ids, "labels": labels, "shift_labels": labels} for ids, labels in pairs]
    (adamw,) = build_optimizers(model.to(device), recipe.optimizer.model_copy(update={"kind": "adamw"}))
    schedule = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: learning_rate(step, recipe) / recipe.optimizer.lr)
    settings = TrainingArguments(
        output_dir=tempfile.gettempdir(),  # nothing is saved
        save_strategy="no",
        use_cpu=device.type == "cpu",
        max_steps=len(rows) // train.global_batch,
        per_device_train_batch_size=train.micro_batch,
        gradient_accumulation_steps=train.global_batch // train.micro_batch,
        bf16=choose_precision(train.precision, device) == "bf16",
        torch_compile=train.compile,
        activation_checkpointing=train.activation_checkpointing != "none",
        max_grad_norm=recipe.optimizer.grad_clip,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        logging_nan_inf_filter=False,
    )
    # Else it spreads over all GPUs of the machine.
    settings._n_gpu = min(settings.n_gpu, 1)  # pyright: ignore[reportPrivateUsage]
    trainer = Trainer(model, settings, train_dataset=rows, callbacks=[Marks()], optimizers=(adamw, schedule))
    trainer.remove_callback(ProgressCallback)
    return trainer.train().training_loss
