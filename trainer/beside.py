"""The same training under transformers' Trainer, for `bench` to measure beside ours.

LlamaForCausalLM or GPT2LMHeadModel, as `export` writes them: with the weights that ours begins with, the same windows
in the same order, the same micro-batch. What is optional and makes it fast is on: SDPA, fused AdamW, bf16 and
torch.compile where ours has them; its check of every loss for NaN, which waits for the GPU, is off. It knows no
`document_mask` and no Muon, and recomputes everything where ours is `selective`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from shards import open_set
from shards.samples import SampleOrder
from trainer.data import Loader
from trainer.device import choose_device, choose_precision
from trainer.export import convert_weights, describe_files
from trainer.model import build_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.config import TrainRecipe


def measure_their_steps(
    recipe: TrainRecipe, shards: Path, steps: int, mark: Callable[[], None]
) -> list[dict[str, Any]]:
    """Take steps on a set's first samples, in the order of a run; return their records."""
    shard_set, train = open_set(shards), recipe.train
    split = shard_set.splits["train"]
    order = SampleOrder([shard.num_tokens for shard in split], seq_len=train.seq_len, seed=train.seed)
    model = build_theirs(recipe, recipe.model.vocab_size or shard_set.vocab_size)
    with Loader(split, order) as loader:
        return take_their_steps(model, recipe, loader, steps, mark, folder=shards.with_name("theirs"))


def build_theirs(recipe: TrainRecipe, vocab_size: int) -> Any:
    """Build transformers' model of the recipe on the CPU, with the weights that ours begins with."""
    eos_id = vocab_size - 1
    config = describe_files(recipe.model, vocab_size, eos_id, {"eos": eos_id}, "float32")["config.json"]
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config), attn_implementation="sdpa"
    )
    weights = build_model(recipe.model, vocab_size, seed=recipe.train.seed).state_dict()
    found = model.load_state_dict(convert_weights(weights, recipe.model, vocab_size), strict=False)
    if found.unexpected_keys or set(found.missing_keys) - {"lm_head.weight"}:  # absent where tied
        raise RuntimeError(f"transformers {transformers.__version__} has other weights than exports have: {found}")
    return model


def take_their_steps(
    model: Any,
    recipe: TrainRecipe,
    loader: Loader,
    steps: int,
    mark: Callable[[], None],
    *,
    folder: Path,
) -> list[dict[str, Any]]:
    """Train on the loader's first samples.

    Args:
        model: from `build_theirs`.
        recipe: batches, lengths and the optimizer's settings.
        loader: gives the windows.
        steps: optimizer steps.
        mark: called before the first step and after each.
        folder: for what the Trainer writes: nothing.

    Returns:
        The `loss` of each step, in nats.
    """
    train, optimizer = recipe.train, recipe.optimizer
    rounds, device = train.global_batch // train.micro_batch, choose_device(train.device)
    losses: list[torch.Tensor] = []

    class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return steps * train.global_batch

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids, targets = (window := loader.read(index, 1)[0])[:-1], window[1:]
            return {"input_ids": ids, "labels": targets, "shift_labels": targets}  # shifted as ours: none is lost

    class Trainer(transformers.Trainer):
        def training_step(self, *arguments: Any, **options: Any) -> torch.Tensor:
            losses.append(super().training_step(*arguments, **options))
            return losses[-1]

    class Marks(transformers.TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            mark()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            mark()

    recompute: dict[str, Any] = {"activation_checkpointing": True} if train.activation_checkpointing != "none" else {}
    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=device.type == "cpu",
        max_steps=steps,
        per_device_train_batch_size=train.micro_batch,
        gradient_accumulation_steps=rounds,
        bf16=choose_precision(train.precision, device) == "bf16",
        tf32=True if device.type == "cuda" else None,
        torch_compile=train.compile,
        optim="adamw_torch_fused",
        learning_rate=optimizer.lr,
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        adam_epsilon=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.grad_clip,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=recipe.schedule.warmup_steps,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        logging_nan_inf_filter=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **recompute,
    )
    settings._n_gpu = min(settings.n_gpu, 1)  # else it spreads over all GPUs of the machine
    trainer = Trainer(model, settings, train_dataset=Rows(), callbacks=[Marks()])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return [{"loss": loss} for loss in torch.stack(losses).view(steps, rounds).sum(1).tolist()]
