"""The train recipe: its schema with the names that transformers' configs use, the rules between its keys, reading.

Widths are in features, lengths in tokens, batches in sequences. Torch is not imported.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, JsonValue, PositiveFloat, PositiveInt

from shards.config import (
    Settings,
    apply_override,
    check_settings,
    did_you_mean,
    in_form,
    item_names,
    nearest,
    read_document,
    read_partly,
    settings_error,
)
from shards.eval_tasks.known import KNOWN_TASKS, EvalTask, Split
from shards.eval_tasks.own import OwnColumns
from shards.terminal.shipped_recipes import find_other_kind, find_recipe, shipped_folder

SHIPPED = shipped_folder(Path(__file__).parent, "train")
"""The folder of the train recipes that come with the distribution."""

Size = Annotated[int, Field(ge=1, le=1 << 24)]
"""A dimension of a model; bounded so that the number of weights of a matrix fits in 64 bits."""
Fraction = Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["auto", "fp32", "bf16"]
MixPhase = Annotated[str, Field(min_length=1)] | PositiveInt
"""A phase of the set's mix: its name, or its number from 1."""


def _default_feed_forward(model: dict[str, Any]) -> int:
    width = model.get("hidden_size", 1)  # missing if it was refused, which is reported
    if model.get("kind") == "gpt2" or model.get("hidden_act") == "relu2":
        return 4 * width  # two matrices, not three
    return -(-8 * width // (3 * 256)) * 256


class ModelConfig(Settings):
    """`[model]`: a decoder of the LLaMA or the GPT-2 class."""

    kind: Literal["llama", "gpt2"]
    """`llama`: RMSNorm, rotary positions, SwiGLU, no biases. `gpt2`: LayerNorm, learned positions, GELU, biases."""
    hidden_act: Literal["silu", "relu2"] = "silu"
    """The feed-forward of a `llama`: `silu` is SwiGLU; `relu2` is the square of ReLU, without a gate."""
    use_qk_norm: bool = False
    """RMSNorm of each head's queries and keys, before the rotation; for a `llama`."""
    zero_init_residual: bool = False
    """Begin with zeros in the projections into the residual stream, instead of small weights. With
    `tie_word_embeddings`, a model wider than some 400 features then begins by repeating its input."""
    hidden_size: Size
    """Features of the residual stream."""
    num_hidden_layers: Annotated[int, Field(ge=1, le=10_000)]
    """Depth of the model."""
    num_attention_heads: Size
    """Query heads of a layer; they divide `hidden_size`."""
    num_key_value_heads: Size = Field(default_factory=lambda model: model.get("num_attention_heads", 1))
    """Groups of query heads share a key/value head; by default, and always with `gpt2`, each has its own."""
    intermediate_size: Size = Field(default_factory=_default_feed_forward)
    """Default: with a gate (SwiGLU) 8/3 of the width, rounded up to a multiple of 256; without one 4 times the width,
    which is as many weights."""
    max_position_embeddings: Size
    """The longest sequence that the model can read, in tokens."""
    vocab_size: Size | None = None
    """Default: the shard set's. It may be larger, not smaller."""
    tie_word_embeddings: bool = False
    """Use the weights of the token embedding for the output, too."""
    rope_theta: PositiveFloat = 10_000.0
    """The base of the rotary positions of a `llama`."""
    rms_norm_eps: PositiveFloat = 1e-5
    """The epsilon of RMSNorm, and of LayerNorm in a `gpt2`."""

    @property
    def head_dim(self) -> int:
        """Features of one attention head."""
        return self.hidden_size // self.num_attention_heads


class TrainConfig(Settings):
    """`[train]`: batches, length and arithmetic."""

    seq_len: PositiveInt
    """Tokens predicted in each sequence."""
    global_batch: PositiveInt
    """Sequences in one optimizer step, over all ranks."""
    micro_batch: PositiveInt
    """Sequences in one forward pass of a rank; gradients accumulate until the global batch is full."""
    steps: Annotated[int, Field(ge=0)] = 0
    """Required, unless `until_mix_phase` gives it."""
    until_mix_phase: MixPhase | None = None
    """A phase of the set's mix, by name or by number from 1, instead of `steps`: the last step is the last one whose
    batch has no window after that phase."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: a GPU if there is one."""
    precision: Precision = "auto"
    """`bf16` is autocast over fp32 weights, with the residual stream in bf16 too. `auto` uses
    it if it is faster."""
    compile: bool = False
    """Compile the model with torch.compile."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """What is kept for the backward pass: `none` keeps everything, `selective` matrix products and attention, `full`
    only the input of each layer; the rest is computed again."""
    document_mask: bool = False
    """No attention across documents, and positions that count from each document's start."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: a whole model on each rank, or FSDP2 (weights, gradients and optimizer state are
    split over the ranks)."""
    log_every: PositiveInt = 10
    """How many steps apart losses are fetched from the device, checked and written."""
    smoke_steps: Annotated[int, Field(ge=0)] = 100
    """The loss must begin near ln(vocabulary size) and be lower after this many steps; 0 switches the test off."""
    spike_nats: PositiveFloat = 3.0
    """A loss that is more than this above the median of the last 50 steps stops the run."""
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 1337
    """Decides the initial weights and the order of the data."""
    order_version: Literal[1, 2] | None = None
    """The order of the data (docs/order.md): 2 cuts each shard into other windows in each epoch, 1 into the same
    ones. Default: 2 for a new run; a resumed run, and one that begins from a checkpoint, keep their own."""


class OptimizerConfig(Settings):
    """`[optimizer]`: AdamW, or Muon for the layers' matrices and AdamW for the rest."""

    kind: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon updates the matrices of layers, and AdamW the rest."""
    lr: PositiveFloat
    """Peak learning rate of AdamW, and of Muon unless `muon_lr` is given."""
    muon_lr: PositiveFloat | None = None
    """Peak learning rate of Muon. Its updates are scaled to the size of AdamW's, so that rates of one size fit both."""
    betas: tuple[Fraction, Fraction] = Field(default=(0.9, 0.95), strict=False)
    """Decay of the running means."""
    eps: PositiveFloat = 1e-8
    """Added to the denominator."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Applied to matrices only, not to norms and biases."""
    grad_clip: PositiveFloat = 1.0
    """Largest L2 norm of the whole gradient."""


class ScheduleConfig(Settings):
    """`[schedule]`: linear warm-up, then down to `min_lr_ratio` of the peak at the last step."""

    kind: Literal["cosine", "wsd"] = "cosine"
    """`cosine`: decay from the warm-up on. `wsd` (warm-up, stable, decay): the peak until the last `decay_steps`."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps until the learning rate is at its peak."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate of the last step, as a fraction of the peak."""
    decay_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps of the cool-down of `wsd`; 0 for a run that others fork from for their cool-downs."""
    decay_from_mix_phase: MixPhase | None = None
    """A phase of the set's mix, instead of `decay_steps`: the cool-down begins with the first step whose batch has a
    window of it."""
    decay_shape: Literal["1-sqrt", "linear"] = "1-sqrt"
    """Form of that cool-down. Source of `1-sqrt`, and of a fifth of all steps for it: arXiv:2405.18392."""


EvalName = Annotated[
    str,
    in_form(
        r"[A-Za-z][A-Za-z0-9._-]{0,99}",
        'at most 100 ASCII letters, digits, ".", "_" and "-", the first a letter, such as "web-2"',
    ),
]
"""The name of an eval set or an eval task: the names of its scores begin with it."""


class EvalSetConfig(Settings):
    """One of `[[eval.sets]]`: text of its own, or a shard set, scored in bits per byte at each validation. All other
    keys are those of a source of a data recipe (`kind`, `paths`, `repo`, `text`, `keep`, `separator`, ...), which the
    pipeline checks."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    name: EvalName
    """The score is `NAME_bpb`."""
    shards: Annotated[str, Field(min_length=1)] | None = None
    """A shard set with the run's tokenizer, a folder or an address, instead of a source's keys."""
    split: Annotated[str, Field(min_length=1)] | None = None
    """With `shards`: `"val"` or `"train"`; by default `val` if the set has that split. Else a source's key."""
    max_tokens: PositiveInt = 1_000_000
    """Whole documents are scored until this many tokens; those after are counted."""

    @property
    def source(self) -> dict[str, JsonValue]:
        """The keys of a source of a data recipe."""
        split: dict[str, JsonValue] = {} if self.split is None else {"split": self.split}
        return {**(self.__pydantic_extra__ or {}), **split}

    @property
    def score_names(self) -> list[str]:
        """The names of its scores."""
        return [f"{self.name}_bpb"]


class EvalTaskConfig(OwnColumns):
    """One of `[[eval.tasks]]`: items with a question, choices and an answer, scored at each validation. The columns and
    the prompt are for files of yours. Known by name are `arc_easy`, `arc_challenge`, `hellaswag`, `piqa`, `sciq`,
    `openbookqa`, `winogrande` and `lambada`."""

    name: EvalName
    """The scores are `NAME_acc`, `NAME_acc_norm` (by the bytes of each choice; not of `winogrande` and `lambada`) and
    `NAME_bpb` (of the right answer)."""
    task: EvalName | None = None
    """A known eval task, when it is not called like `name`."""
    files: list[str] = Field(default_factory=list)
    """Parquet files or JSON lines with the items, relative to the recipe's folder. A known eval task is read from the
    Hub without them."""
    num_fewshot: Annotated[int, Field(ge=0, le=100)] = 0
    """How many items with their right answers come before each question."""
    fewshot_split: Split | None = None
    """The split of a known eval task that these come from; by default the one of lm-evaluation-harness."""
    fewshot_files: list[str] = Field(default_factory=list)
    """Files that these come from, instead of a split."""
    fewshot_draw: Literal["fixed", "first"] = "fixed"
    """`fixed`: other ones for each item, which never change and never are the item itself. `first`: the first ones for
    all, as the sampler `first_n` of lm-evaluation-harness takes."""
    limit: PositiveInt | None = None
    """Only the first items are scored."""

    @property
    def known(self) -> EvalTask | None:
        """The known eval task; None for one of the user's own."""
        return KNOWN_TASKS.get(self.task or self.name)

    @property
    def score_names(self) -> list[str]:
        """The names of its scores."""
        normalised = [] if self.known and not self.known.compares_texts else [f"{self.name}_acc_norm"]
        return [f"{self.name}_acc", *normalised, f"{self.name}_bpb"]


class EvalConfig(Settings):
    """`[eval]`: validation, also done after the last step."""

    every_steps: PositiveInt = 250
    """Steps between validations."""
    max_tokens: PositiveInt = 1_000_000
    """Tokens of the val split that are predicted each time, from its start."""
    prompts: list[Annotated[str, Field(min_length=0)]] = Field(default_factory=list)  # bounded: checks UTF-8
    """Prompts that the model continues at each phase's end; the texts go to `samples/` of the run folder."""

    sets: list[EvalSetConfig] = Field(default_factory=list[EvalSetConfig])
    """Text or shard sets that are scored at each validation."""
    tasks: list[EvalTaskConfig] = Field(default_factory=list[EvalTaskConfig])
    """Questions with choices that are scored at each validation."""

    @property
    def score_names(self) -> list[str]:
        """The names of the scores of all eval sets and tasks, in order."""
        return [name for one in (*self.sets, *self.tasks) for name in one.score_names]


class CheckpointConfig(Settings):
    """`[checkpoint]`: saving. A run also saves at the end of each phase, after the last step, and when it is
    interrupted."""

    every_steps: PositiveInt = 250
    """Steps between checkpoints."""
    keep_last: PositiveInt = 2
    """Milestones and the checkpoint with the best validation loss are kept as well."""


class LogConfig(Settings):
    """`[log]`: where the numbers of `metrics.jsonl` go, too."""

    wandb_project: Annotated[str, Field(min_length=1)] | None = None
    """A project of Weights & Biases, if the package `wandb` is installed. Its environment variables apply, such as
    `WANDB_MODE=offline`. A failure never stops training."""


class CostConfig(Settings):
    """`[cost]`: what the machine costs."""

    gpu_usd_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """The price of one GPU (one rank)."""
    peak_tflops: PositiveFloat | None = None
    """Dense bf16 peak of one device, for MFU. Default: the data sheet's, for the usual GPUs."""


_GOAL = r"[A-Za-z][A-Za-z0-9._-]* [<>]=? \d+(\.\d+)?"


class PhaseConfig(Settings):
    """One of `[[phases]]`: from the end of the phase before it until `until_step`, with an off-ramp at the end."""

    name: Annotated[str, Field(min_length=1)]
    """The name of the phase in messages and in the ledger."""
    until_step: Annotated[int, Field(ge=0)] = 0
    """Required, unless `until_mix_phase` gives it."""
    until_mix_phase: MixPhase | None = None
    """A phase of the set's mix, instead of `until_step`: until the last step whose batch has no window of the mix after
    that phase. The recipe in the run folder has both keys."""
    budget_usd: PositiveFloat | None = None
    """The run stops when the phase has cost more than this."""
    goal: Annotated[str, in_form(_GOAL, 'a score, <, <=, > or >=, and a number, such as "val_loss < 4.0"')] | None = (
        None
    )
    """Such as `val_loss < 4.0`, or a score: `web_bpb < 1.10`. The run stops at the phase's end if it is missed."""
    milestones: list[PositiveInt] = Field(default_factory=list[PositiveInt])
    """Steps whose checkpoints are kept, in addition to `until_step`."""


class TrainRecipe(Settings):
    """A whole train recipe, with every default filled in."""

    name: Annotated[str, Field(min_length=1)]
    """The name of the recipe."""
    model: ModelConfig
    train: TrainConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    cost: CostConfig = CostConfig()
    phases: list[PhaseConfig] = Field(default_factory=list[PhaseConfig])

    @property
    def milestones(self) -> set[int]:
        """Steps whose checkpoints are saved and never deleted."""
        return {step for phase in self.phases for step in (phase.until_step, *phase.milestones)}

    def with_order(self, default: Literal[1, 2]) -> TrainRecipe:
        """Return the recipe with a version of the order: its own, or `default` if it names none.

        A recipe that a run or a checkpoint recorded without one is of version 1: there was no other.
        """
        version = self.train.order_version or default
        return self.model_copy(update={"train": self.train.model_copy(update={"order_version": version})})


EVAL_PATH_KEYS = ("paths", "exclude", "shards", "files", "fewshot_files")
"""Keys of eval sets and tasks that name files: paths begin at the recipe's folder."""

FIXED_BY_CHECKPOINT = (
    "model.",
    "train.seq_len",
    "train.global_batch",
    "train.seed",
    "train.order_version",
    "optimizer.kind",
)
"""Keys, or prefixes of keys, that decide a checkpoint's weights or the order of the data. A resumed run keeps them."""


def check_rules(tables: dict[str, Any]) -> Iterator[str]:
    """Yield the faults between keys of an unvalidated recipe, for one report with the faults of single keys."""
    model = read_partly(ModelConfig, tables.get("model"))
    train = read_partly(TrainConfig, tables.get("train"))
    optimizer = read_partly(OptimizerConfig, tables.get("optimizer"))
    yield from _check_heads(model)
    if model.kind == "gpt2":
        for key, plain in (("hidden_act", "silu"), ("use_qk_norm", False)):
            if getattr(model, key) != plain:
                yield f'model.{key}: kind = "gpt2" has its own parts. Leave the key out, or choose kind = "llama".'

    if train.global_batch % train.micro_batch > 0:
        sizes = f"train.global_batch = {train.global_batch} with train.micro_batch = {train.micro_batch}"
        yield f"{sizes}: the global batch must be whole micro-batches. Choose a micro_batch that divides it."

    length, context = train.seq_len, model.max_position_embeddings
    if length > context:
        sizes = f"train.seq_len = {length} with model.max_position_embeddings = {context}"
        yield f"{sizes}: sequences must fit in the model's context. Raise max_position_embeddings or lower seq_len."

    # A phase of the mix gives the number of steps when the set is known, and then these rules are applied again. Until
    # then it is NaN: no comparison with it is true.
    steps = train.steps or math.nan
    if train.steps == 0 and train.until_mix_phase is None:
        yield "train.steps: required key is missing. Give it, or until_mix_phase."
    yield from _check_schedule(read_partly(ScheduleConfig, tables.get("schedule")), steps=steps)

    if optimizer.kind == "adamw" and optimizer.muon_lr is not None:
        yield 'optimizer.muon_lr: optimizer.kind = "adamw" has no Muon. Leave it out, or choose kind = "muon".'

    yield from check_eval(tables)

    phases: Any = tables.get("phases")
    if isinstance(phases, list):
        price = read_partly(CostConfig, tables.get("cost")).gpu_usd_per_hour
        yield from _check_phases(cast("list[Any]", phases), steps=steps, price=price)
        yield from _check_goals(cast("list[Any]", phases), read_partly(EvalConfig, tables.get("eval")))


def _check_heads(model: ModelConfig) -> Iterator[str]:
    # Heads divide the width, and groups the heads.
    width, heads, groups = model.hidden_size, model.num_attention_heads, model.num_key_value_heads
    sizes = f"model.hidden_size = {width} with model.num_attention_heads = {heads}"
    if width % heads > 0:
        yield f"{sizes}: the heads must divide the width. Choose a hidden_size that is a multiple of their number."
    elif model.kind == "llama" and width // heads % 2 > 0:
        yield f"{sizes}: rotary positions need an even number of features a head. Choose an even quotient."

    sizes = f"model.num_attention_heads = {heads} with model.num_key_value_heads = {groups}"
    if model.kind == "gpt2" and groups < heads:
        yield f'{sizes}: kind = "gpt2" has no groups of heads. Leave num_key_value_heads out.'
    elif heads % groups > 0:
        yield f"{sizes}: the key/value heads must divide the attention heads. Choose a number that divides them."


def _check_schedule(schedule: ScheduleConfig, *, steps: float) -> Iterator[str]:
    # Which keys belong to which kind, then whether warm-up and decay fit.
    warmup_steps, decay_steps = schedule.warmup_steps, schedule.decay_steps
    place = f"schedule.warmup_steps = {warmup_steps} with train.steps = {steps}"
    given = [key for key in ("decay_steps", "decay_from_mix_phase") if getattr(schedule, key) is not None]
    if schedule.kind == "cosine" and given:
        yield f'schedule.{given[0]}: a cosine decays from the warm-up on. Leave it out, or choose kind = "wsd".'
    elif schedule.kind == "wsd" and not given:
        yield (
            'schedule.decay_steps: is missing, and kind = "wsd" needs it. Choose about a fifth of train.steps, or 0 '
            "for a training run whose checkpoints others begin from (`train --from`), or give decay_from_mix_phase."
        )
    if warmup_steps > steps:
        yield f"{place}: the warm-up must end within the training run. Lower warmup_steps or raise steps."
    elif decay_steps and warmup_steps + decay_steps > steps:
        remedy = "Lower one or raise steps"
        yield f"{place} and schedule.decay_steps = {decay_steps}: both must fit in the training run. {remedy}."


def _check_phases(tables: list[Any], *, steps: float, price: float) -> Iterator[str]:
    begin: float = 0
    for table in filter(lambda table: isinstance(table, dict), tables):  # the model reports what is no table
        # Each phase begins where the one before it ends.
        phase = read_partly(PhaseConfig, table)
        end: float = phase.until_step
        place = f"phases.{phase.name}"
        if phase.budget_usd is not None and price == 0:
            yield f"{place}.budget_usd: a budget needs a price. Set cost.gpu_usd_per_hour."
        if end == 0 and phase.until_mix_phase is not None:
            begin, end = 0, steps  # known when the set is
        elif end == 0:
            yield f"{place}.until_step: required key is missing. Give it, or until_mix_phase."
            continue
        elif end <= begin:
            yield f"{place}.until_step = {end}: expected more than {begin}, where the phase begins."
        last = min(end, steps)
        milestones: Any = phase.milestones  # not a list if it was refused
        for step in cast("list[Any]", milestones) if isinstance(milestones, list) else []:
            if step <= begin or step > last:
                yield f"{place}.milestones: {step}: expected a step of the phase, after {begin} and until {last}."
        begin = phase.until_step


def _can_be_scored(config: EvalConfig) -> bool:
    """Return whether no eval set or task was refused: then it is NaN, and reported."""
    given: list[Any] = [config.sets, config.tasks]
    return all(isinstance(one, list) for one in given)


def check_eval(tables: dict[str, Any]) -> Iterator[str]:
    """Yield the faults between keys of the eval sets and tasks of an unvalidated recipe."""
    # Each set has one place; the pipeline checks the keys of a source.
    config = read_partly(EvalConfig, tables.get("eval"))
    if not _can_be_scored(config):
        return
    for one in config.sets:
        place, given = f"eval.sets.{one.name}", one.source.keys() - {"split"}
        if one.shards is not None and given:
            yield f"{place}: has shards, and {sorted(given)} of a source. Leave one out."
        elif one.shards is None and not given & {"paths", "repo"}:
            hints = {key: did_you_mean(key, ["paths", "repo", "shards"]) for key in sorted(given)}
            faults = [f"{place}.{key}: unknown key.{hint}" for key, hint in hints.items() if hint]
            yield from faults or [f'{place}: has no text. Give paths (kind = "files"), repo (kind = "hub"), or shards.']
        elif one.shards is not None and one.split not in (None, "train", "val"):
            yield f'{place}.split = {one.split!r}: expected "train" or "val", the splits of a shard set.'
    for one in config.tasks:
        yield from _check_eval_task(one)
    # Scores are told apart by name alone.
    for name, count in Counter(one.name for one in (*config.sets, *config.tasks)).items():
        if count > 1:
            yield f"eval: {count} eval sets and tasks are named {name!r}. Give each a name of its own."


def _check_eval_task(one: EvalTaskConfig) -> Iterator[str]:
    # A known eval task has its own columns and splits; one of the user has files.
    place = f"eval.tasks.{one.name}"
    columns = sorted(one.model_dump(include=set(OwnColumns.model_fields), exclude_defaults=True))
    if one.task is not None and one.known is None:
        yield f"{place}.task = {one.task!r}: no such eval task.{nearest(one.task, list(KNOWN_TASKS))}"
    elif one.known and columns:
        yield f"{place}.{columns[0]}: the columns of {one.known.name} are known. Leave it out, or change the name."
    elif not one.known and not one.files:
        known = nearest(one.name, list(KNOWN_TASKS))
        yield f"{place}: has no items, and no known eval task has this name.{known} Give files, or task."
    if not one.known and one.fewshot_split:
        yield f"{place}.fewshot_split: only known eval tasks have splits. Give fewshot_files with the examples instead."
    elif not one.known and one.num_fewshot and not one.fewshot_files:
        yield f"{place}.num_fewshot = {one.num_fewshot}: the examples have no place. Give fewshot_files."
    elif one.fewshot_split and one.fewshot_files:
        yield f"{place}.fewshot_split: not used, because fewshot_files is given. Leave one of them out."
    for key in ("fewshot_split", "fewshot_files"):
        if not one.num_fewshot and getattr(one, key):
            yield f"{place}.{key}: not used, because num_fewshot is 0. Give num_fewshot, or leave {key} out."


def _check_goals(tables: list[Any], config: EvalConfig) -> Iterator[str]:
    # Only a loss, or a score that the recipe takes, can be a goal.
    if not _can_be_scored(config):
        return
    known = ["val_loss", "loss", *config.score_names]
    for table in filter(lambda table: isinstance(table, dict), tables):
        phase = read_partly(PhaseConfig, table)
        goal: Any = phase.goal  # NaN if it was refused
        if isinstance(goal, str) and (name := goal.split()[0]) not in known:
            yield f"phases.{phase.name}.goal = {goal!r}: no score is named {name!r}.{nearest(name, known)}"


def load_train_recipe(path: Path, overrides: list[str] | None = None) -> TrainRecipe:
    """Read a train recipe and apply `KEY=VALUE` overrides.

    The path is a TOML file, the JSON of a run folder, or the name of a shipped recipe.

    Raises:
        InputError: with every fault of the file and of the overrides.
    """
    # File, overrides, schema, rules: all faults in one report.
    file = find_recipe(path, SHIPPED)
    data = read_document(file)
    if other := find_other_kind(data, "train"):
        raise settings_error(str(file), [other])
    # Paths begin at the file's folder, those of overrides at the working directory.
    locate_eval_files(data, find_eval_folder(file, path))
    faults = [fault for override in overrides or [] for fault in apply_override(data, override)]
    locate_eval_files(data, Path.cwd())
    return check_settings(TrainRecipe, data, where=str(file), checks=(check_rules,), faults=faults)


def find_eval_folder(file: Path, given: Path) -> Path:
    """Return the folder at which paths of eval sets in a recipe's file begin, from the path or name that was given.

    A recipe that was found by its name may be anywhere: its paths begin where they would in a checkout at the working
    directory.
    """
    return file.parent if file == Path(given) else Path("recipes/train")


def locate_eval_files(data: dict[str, Any], folder: Path) -> None:
    """Let paths of eval sets and tasks in a raw recipe begin at the root; URLs, and values of a wrong type, stay."""

    def locate(value: Any) -> Any:
        if isinstance(value, list):
            return [locate(item) for item in cast("list[Any]", value)]
        return os.path.abspath(folder / value) if isinstance(value, str) and "://" not in value else value

    section: Any = data.get("eval")
    for name in ("sets", "tasks"):
        given: Any = cast("dict[str, Any]", section).get(name) if isinstance(section, dict) else None
        for table in cast("list[Any]", given) if isinstance(given, list) else []:
            if isinstance(table, dict):
                own = cast("dict[str, Any]", table)
                own.update({key: locate(own[key]) for key in EVAL_PATH_KEYS if key in own})


def parse_recipe(tables: dict[str, Any]) -> TrainRecipe:
    """Turn the recipe that a checkpoint holds back into the model.

    Raises:
        InputError: this version does not know such a recipe.
    """
    recipe = check_settings(TrainRecipe, tables, where="recipe of the checkpoint", checks=(check_rules,))
    return recipe.with_order(1)


def list_keys(tables: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a train recipe as JSON has it, with their values; tables of a list go by their names.

    Empty lists are left out: a list of tables that is empty has no key.
    """
    for key, value in tables.items():
        items = cast("list[Any]", value) if isinstance(value, list) else []
        if items and all(isinstance(item, dict) for item in items):
            value = dict(zip(item_names(items), items, strict=True))
        if isinstance(value, dict):
            yield from list_keys(cast("dict[str, Any]", value), f"{place}{key}.")
        elif value != []:
            yield f"{place}{key}", value


def find_changes(old: Settings, new: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys of a train recipe whose values differ in another, each with its (old, new) values.

    The value of a key that a recipe does not have, such as one of an eval task that was removed, is None.
    """
    before, after = (dict(list_keys(recipe.model_dump(mode="json"))) for recipe in (old, new))
    values = {key: (before.get(key), after.get(key)) for key in dict.fromkeys([*before, *after])}
    return {key: (then, now) for key, (then, now) in values.items() if then != now}
