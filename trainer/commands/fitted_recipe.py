"""The train recipe that `fit --write` writes: the model that learns most from a set, on this machine, in a given time.

**Size.** Of `WIDTHS` (a layer for each 64 features, as in GPT-2 and nanochat, and at least four), that for which this
scaling law predicts the least loss, of N parameters and D tokens:

    521 / N ** 0.353 + 1488 / D ** 0.353

Source: Muennighoff et al. 2023 (arXiv:2305.16264). With enough text it chooses about 20 tokens per parameter, as
Chinchilla (arXiv:2203.15556) does. D is what this machine takes in the time, by steps that are measured, and at most
four epochs: up to there, the first paper finds repeats nearly as good as new text. So training on a small set ends
sooner than asked; N counts up to one parameter per token there, since what exceeds that hardly helps.

With 80 core-seconds, the demo's set and squared ReLU, the measured losses of four sizes had the order of the predicted
ones: 5.03 with 64 features in four layers, 5.09 in two, 5.21 with 32, 5.27 with the demo's 128. With less time the law
would choose fewer than 64, which was not seen to help.

**Length.** A power of two: at most twice a document's mean, what validation has, and a fourth of a shard.

**Batch and rates** are those of our recipes at their sizes: a step has 1.45 times the root of all tokens, up to a power
of two; Muon's rate is 0.8 / width, at most 8e-3, and AdamW's twice that. Nothing here tries out other ones.
"""

import json
import math
import tomllib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shards import ShardSet
from shards.config import check_settings
from shards.errors import InputError
from shards.format.windows.packed import RowKind, count_rows, order_split
from shards.terminal.amounts import format_duration
from shards.terminal.display import JsonObject, printable
from trainer.model.decoder import count_parameters, flops_per_token
from trainer.recipe import TrainRecipe
from trainer.session import plan_windows

WIDTHS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
EPOCHS = 4
ENTRY_OPERATIONS = 450
"""What the loss takes for each entry of the vocabulary beside matrix products, in operations that take as long: on a
CPU, models of 32, 64 and 128 features with 8,192 entries took 134, 174 and 308 us per token."""
_LONGEST_ROW = 16
"""Times a device's sequence: at most so long a row is, for the longest conversation."""
DEVICES = {"cpu": (600, 6, 128, 1 << 23, 4e10), "cuda": (3600, 40, 1024, 1 << 28, 1e14)}
"""By device: how many seconds to train by default; seconds to start, compile and sample; tokens of a sequence at most;
logits of a micro-batch, or features of all its layers, at most; a guess of its operations per second.

A CPU's length and micro-batch are the demo's; a GPU's figures are not measured."""


def suggest(width: int, tokens: int, seq_len: int, kind: str = "muon") -> dict[str, float]:
    """Return for `fit` the batch and the rates of a training, by their keys in a recipe."""
    rate = float(f"{min(8e-3, 0.8 / width):.2g}")
    rates = {"lr": 2 * rate, "muon_lr": rate} if kind == "muon" else {"lr": rate}
    return {"global_batch": 1 << int(1.45 * math.sqrt(tokens) / seq_len).bit_length(), **rates}


class Task(NamedTuple):
    """What to fit: a set, a device and a time."""

    shard_set: ShardSet
    name: str
    kind: str
    seconds: float | None
    price: float
    """Dollars an hour; 0 if it is not known."""

    def write(self, width: int, speed: float, device: str = "", prompts: Sequence[str] = ()) -> str:
        """Return the recipe of a model that takes `speed` tokens per second."""
        default, start_s, longest, micro_batch, _ = DEVICES[self.kind]
        seconds, size, splits = self.seconds or default, self.shard_set.vocab_size, self.shard_set.splits
        train, val = ([0, *(shard.num_tokens for shard in splits.get(split, ()))] for split in ("train", "val"))
        mean = sum(train) / (1 + sum(shard.num_documents for shard in splits["train"]))
        seq_len = int(min(longest, 2 * mean, max(val), min(train[1:], default=0) / 4))
        seq_len = 1 << max(4, seq_len.bit_length() - 1)
        rows: RowKind = "windows" if self.shard_set.manifest.chat is None else "packed"
        if rows == "packed":  # no conversation is cut
            needed, most = count_rows(self.shard_set, "train", seq_len).longest, _LONGEST_ROW * longest
            if needed > most:
                raise InputError(
                    f"{self.shard_set.store}: its longest conversation has {needed:,} tokens; expected at most "
                    f"{most:,} on this device. Build with chat.max_tokens = {most}, or write a recipe by hand."
                )
            seq_len = max(seq_len, 1 << (needed - 1).bit_length())
        windows = order_split(self.shard_set, seq_len=seq_len, seed=0, rows=rows).per_epoch
        # Steps of a size that suits their number, in nine tenths of the time: the rest is for validation.
        possible = max(seconds / 2, 0.9 * seconds - start_s) * speed
        enough = EPOCHS * windows * seq_len
        tokens = min(possible, enough)
        choices = suggest(width, int(tokens), seq_len)
        batch = min(int(choices["global_batch"]), 1 << max(1, windows).bit_length() - 1)
        layers = max(4, width // 64)
        micro_batch = micro_batch // max(size, width * layers, 4096) // seq_len
        steps = max(1, round(tokens / batch / seq_len))
        tokens = steps * batch * seq_len
        limit = f" More than {EPOCHS} would teach little. More text would help." if enough < possible else ""
        return f"""\
# Written by `tokenmill fit --write` for {format_duration(seconds)} on {device}.
# Set: {printable(str(self.shard_set.store))}, {sum(train):,} training tokens.
# Model: {width} features, {layers} layers, {speed:,.0f} tokens/s as measured.
# Training: {tokens:,} tokens, {tokens / seq_len / (windows or 1):.2f} epochs, in about \
{format_duration(start_s + 1.1 * tokens / speed)}.{limit}
# `tokenmill fit --help` says how the size is chosen, and docs/keys.md lists every key.
name = {json.dumps(printable(self.name))}

[model]
kind = "llama"
hidden_size = {width}
num_hidden_layers = {layers}
num_attention_heads = {max(1, width // (32 if width < 256 else 64))}
intermediate_size = {3 * width}
use_qk_norm = true  # with SwiGLU, so that transformers, vLLM and llama.cpp run it
zero_init_residual = true
max_position_embeddings = {seq_len}
vocab_size = {size}  # that of the set
tie_word_embeddings = {json.dumps(width <= 256)}

[train]
seq_len = {seq_len}  # a document has {mean:,.0f} tokens on average
global_batch = {batch}  # sequences in a step: {batch * seq_len:,} tokens
micro_batch = {min(batch, 1 << max(1, micro_batch).bit_length() - 1)}
steps = {steps}
rows = "{rows}"
compile = {json.dumps(self.kind == "cuda")}

[optimizer]
kind = "muon"
lr = {choices["lr"]:g}  # AdamW: embeddings, output and norms
muon_lr = {choices["muon_lr"]:g}  # matrices of layers

[schedule]
warmup_steps = {steps // 20}
min_lr_ratio = 0.0

[eval]  # in a tenth of the time: all of the split if possible, up to four times
every_steps = {math.ceil(steps / max(1, min(4, 0.3 * speed * seconds // max(1, sum(val)))))}
max_tokens = {max(1, min(sum(val), int(0.3 * speed * seconds)))}  # of {sum(val):,}
prompts = {json.dumps(prompts, ensure_ascii=False)}

[checkpoint]
every_steps = {math.ceil(steps / (1 + seconds // 600))}

[cost]
gpu_usd_per_hour = {self.price}

[[phases]]  # to stop at a bad loss: goal = "val_loss < {0.6 * math.log(size):.1f}" (guessing has {math.log(size):.1f})
name = "whole run"
until_step = {steps}
"""

    def parse(self, width: int, speed: float) -> TrainRecipe:
        """Return the recipe that `write` writes, or refuse the set as `train` would."""
        recipe = check_settings(TrainRecipe, tomllib.loads(self.write(width, speed)), where="fit --write")
        plan_windows(self.shard_set, recipe, 1, lambda line: None)
        return recipe


def fit_recipe(task: Task, measure: Callable[[TrainRecipe], JsonObject]) -> str:
    """Return for `fit` the text of a train recipe for a task.

    Args:
        task: the set, and the time.
        measure: takes steps of a recipe, and returns `device` and `tokens_per_s`.

    Raises:
        InputError: the set is too small to train on.
    """
    sizes: dict[int, tuple[int, float]] = {}
    for width in WIDTHS:
        model = task.parse(width, 1).model
        size = model.vocab_size or 0
        operations = flops_per_token(model, size, model.max_position_embeddings) + ENTRY_OPERATIONS * size
        sizes[width] = count_parameters(model, size), operations
    # What the model that is measured first takes in a second says what the others would.
    rate = DEVICES[task.kind][-1]
    best, measured = 0, JsonObject()
    for _ in range(2):
        recipes = {width: task.parse(width, rate / operations) for width, (_, operations) in sizes.items()}
        best = min(recipes, key=lambda width: _predict_loss(sizes[width][0], recipes[width].train.tokens))
        measured = measure(recipes[best])
        rate = measured["tokens_per_s"] * sizes[best][1]
    return task.write(best, measured["tokens_per_s"], measured["device"], _find_prompts(task.shard_set))


def _predict_loss(parameters: int, tokens: int) -> float:
    """Return the loss that this module's law predicts, less what no model can learn."""
    return 521 / min(parameters, tokens) ** 0.353 + 1488 / tokens**0.353


def _find_prompts(shard_set: ShardSet) -> list[str]:
    """Return the first words of some validation documents that are no conversations, for the recipe."""
    shard, chat = shard_set.splits["val"][0], shard_set.manifest.chat
    found: list[str] = []
    for row in shard.documents().slice(0, 9).to_pylist():
        tokens = shard.read(row["start"], row["start"] + min(row["length"] - 1, 40))
        if chat is not None and chat.opening[0] in tokens:
            continue
        words = shard_set.vocabulary.decode_document(tokens).decode(errors="ignore").split()
        found.append(" ".join(words[:4])[:40].strip())
    return [prompt for prompt in dict.fromkeys(found) if prompt.isprintable() and prompt][:3]
