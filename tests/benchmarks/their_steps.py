"""Training steps of transformers' Trainer on the windows of ours, to compare the speed of both.

It trains LlamaForCausalLM or GPT2LMHeadModel as `tokenmill export` describes them, with the weights that ours begins
with, the same windows in the same order (at hand in memory), micro-batch, learning rates and fused AdamW: in fp32 the
losses are equal. What makes it fast is on: SDPA, and bf16 and torch.compile if ours has them; its check of every loss
for NaN, which waits for the GPU, is off. It knows no `document_mask` and no Muon.
"""

import tempfile
from collections.abc import Callable
from typing import Any

import torch

from shards.torch.windows import Sample
from trainer.device import choose_device, choose_precision
from trainer.model.decoder import build_model
from trainer.optim import build_optimizers, learning_rate
from trainer.recipe import TrainRecipe
from trainer.weights.transformers_folder import describe_export_files, export_weights


def build_theirs(recipe: TrainRecipe, vocab_size: int) -> Any:
    """Build the model that `bench` compares steps with: the recipe's, of transformers, with our initial weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    files = describe_export_files(recipe.model, vocab_size, {"eos": 0}, "float32", eos_id=0, begin_id=0)
    config = files["config.json"]
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
    (adamw,) = build_optimizers(model.to(device), recipe.optimizer.with_values(kind="adamw"), "fp32")
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
