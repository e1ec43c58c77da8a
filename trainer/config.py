"""The train recipe's schema: frozen models with the names that transformers' configs use.

What a recipe may say and the rules between its keys; `trainer.recipe` reads files. Widths are in
features, lengths in tokens, batches in sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from shards.settings import Settings

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
Precision = Literal["auto", "fp32", "bf16"]


class Section(Settings):
    """A table of the recipe: beside what all settings refuse, infinities and NaN."""

    model_config = ConfigDict(allow_inf_nan=False)


class ModelConfig(Section):
    """`[model]`: a LLaMA-class decoder. The vocabulary comes from the shard set."""

    kind: Literal["llama"]
    hidden_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive
    """Groups of query heads share a key/value head; equal to `num_attention_heads` for plain attention."""
    intermediate_size: Positive
    max_position_embeddings: Positive
    tie_word_embeddings: bool = False
    rope_theta: PositiveFloat = 10_000.0
    rms_norm_eps: PositiveFloat = 1e-5

    @property
    def head_dim(self) -> int:
        """Features of one attention head."""
        return self.hidden_size // self.num_attention_heads


class TrainConfig(Section):
    """`[train]`: batches, length and arithmetic."""

    seq_len: Positive
    """Tokens predicted in each sequence."""
    global_batch: Positive
    """Sequences in one optimizer step."""
    micro_batch: Positive
    """Sequences in one forward pass; gradients accumulate over `global_batch / micro_batch` of them."""
    steps: Positive
    precision: Precision = "auto"
    """`bf16` is autocast over fp32 weights; `trainer.device.choose_precision` says what `auto` means and why."""
    compile: bool = False
    """Compile the model with torch.compile."""
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 1337
    """Decides the initial weights and the order of the data."""


class OptimizerConfig(Section):
    """`[optimizer]`: AdamW."""

    lr: PositiveFloat
    """Peak learning rate."""
    betas: tuple[Fraction, Fraction] = Field(default=(0.9, 0.95), strict=False)
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Applied to matrices only; norms are left alone."""
    grad_clip: PositiveFloat = 1.0
    """Largest L2 norm of the whole gradient."""


class ScheduleConfig(Section):
    """`[schedule]`: linear warm-up, then a cosine down to `min_lr_ratio` of the peak at the last step."""

    warmup_steps: Annotated[int, Field(ge=0)] = 0
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1


class EvalConfig(Section):
    """`[eval]`: validation, also done after the last step."""

    every_steps: Positive = 250
    max_tokens: Positive = 1_000_000
    """Tokens of the val split that are predicted each time, from its start."""


class CheckpointConfig(Section):
    """`[checkpoint]`: saving, also done after the last step and when interrupted."""

    every_steps: Positive = 250
    keep_last: Positive = 2


class TrainRecipe(Section):
    """A whole train recipe, resolved."""

    name: Annotated[str, Field(min_length=1)]
    model: ModelConfig
    train: TrainConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()


SECTIONS: dict[str, type[Section]] = {
    "model": ModelConfig,
    "train": TrainConfig,
    "optimizer": OptimizerConfig,
    "schedule": ScheduleConfig,
    "eval": EvalConfig,
    "checkpoint": CheckpointConfig,
}

FIXED_BY_CHECKPOINT = ("model.", "train.seq_len", "train.global_batch", "train.seed")
"""Keys (or prefixes) that decide the weights' shapes or the order of the data: a resumed run may not change them."""

_Rule = tuple[tuple[str, str], Callable[[int, int], bool], str, str]

# (the two keys, what must hold, what was expected, what to do)
_RULES: tuple[_Rule, ...] = (
    (
        ("model.hidden_size", "model.num_attention_heads"),
        lambda width, heads: width % heads == 0,
        "the heads must divide the width",
        "Choose a hidden_size that is a multiple of num_attention_heads.",
    ),
    (
        ("model.hidden_size", "model.num_attention_heads"),
        lambda width, heads: width % heads != 0 or (width // heads) % 2 == 0,
        "rotary positions need an even number of features a head",
        "Choose hidden_size / num_attention_heads even.",
    ),
    (
        ("model.num_attention_heads", "model.num_key_value_heads"),
        lambda heads, groups: heads % groups == 0,
        "the key/value heads must divide the attention heads",
        "Choose a num_key_value_heads that divides num_attention_heads.",
    ),
    (
        ("train.global_batch", "train.micro_batch"),
        lambda batch, micro: batch % micro == 0,
        "the global batch must be a whole number of micro-batches",
        "Choose a micro_batch that divides global_batch.",
    ),
    (
        ("train.seq_len", "model.max_position_embeddings"),
        lambda length, positions: length <= positions,
        "sequences must fit in the model's context",
        "Raise max_position_embeddings or lower seq_len.",
    ),
    (
        ("schedule.warmup_steps", "train.steps"),
        lambda warmup, steps: warmup <= steps,
        "the warm-up must end within the run",
        "Lower warmup_steps or raise steps.",
    ),
)


def check_rules(tables: dict[str, Any]) -> Iterator[str]:
    """Yield the faults between keys of an unvalidated recipe.

    Works on raw values so that one report holds these problems beside all others; a rule with a key that is missing or
    not a whole number is left to the schema.
    """
    for (left, right), holds, expected, remedy in _RULES:
        a, b = _whole_number(tables, left), _whole_number(tables, right)
        if a is not None and b is not None and not holds(a, b):
            yield f"{left} = {a} with {right} = {b}: {expected}. {remedy}"


def _whole_number(tables: dict[str, Any], path: str) -> int | None:
    section, key = path.split(".")
    table = tables.get(section, {})
    if not isinstance(table, dict):
        return None
    value = table.get(key, SECTIONS[section].model_fields[key].default)
    smallest = 0 if path == "schedule.warmup_steps" else 1
    return value if type(value) is int and value >= smallest else None
