"""The train recipe: its schema, with the names that transformers' configs use.

Widths are in features, lengths in tokens, batches in sequences. Torch is not imported.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from shards.config import Settings, Text, are_named, in_form, item_names, list_of, shared_names
from shards.terminal.hints import nearest
from trainer.recipe.cards import CARDS
from trainer.recipe.eval_config import EvalConfig

Size = Annotated[int, Field(ge=1, le=1 << 24)]
"""A dimension of a model or a batch; bounded so that the number of weights of a matrix fits in 64 bits."""
Count = Annotated[int, Field(ge=0, le=1 << 53)]
"""Steps, windows or an id: above the limit a float no longer counts them."""
Fraction = Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["auto", "fp32", "bf16"]
Recomputation = Literal["none", "selective", "full"]
"""A value of `train.activation_checkpointing`."""
ChosenPrecision = Literal["fp32", "bf16"]
"""What `auto` stands for on a device."""


def _default_feed_forward(model: dict[str, Any]) -> int:
    width = model.get("hidden_size", 1)  # missing if it was refused, which is reported
    if model.get("kind") == "gpt2" or model.get("hidden_act") == "relu2":
        return 4 * width  # two matrices, not three
    return -(-8 * width // (3 * 256)) * 256


class ModelConfig(Settings):
    """A decoder of the LLaMA or the GPT-2 class, with the names of transformers' configurations."""

    kind: Literal["llama", "gpt2"]
    """`llama`: RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases. `gpt2`: LayerNorm, learned
    positions, GELU, biases."""
    hidden_act: Literal["silu", "relu2"] = "silu"
    """The feed-forward of a `llama`: `silu` is SwiGLU; `relu2` is the square of ReLU, without a gate."""
    use_qk_norm: bool = False
    """RMSNorm of each head's queries and keys, before the rotation; for a `llama`."""
    zero_init_residual: bool = False
    """Begin with zeros in the projections into the residual stream: each layer begins as the identity."""
    hidden_size: Size
    """Width of the residual stream; a multiple of `num_attention_heads`."""
    num_hidden_layers: Annotated[int, Field(ge=1, le=1_000)]
    """Depth of the model."""
    num_attention_heads: Size
    """Query heads of a layer."""
    num_key_value_heads: Size = Field(default_factory=lambda model: model.get("num_attention_heads", 1))
    """Key and value heads, each shared by a group of query heads; by default one for each."""
    intermediate_size: Size = Field(default_factory=_default_feed_forward)
    """Width of the feed-forward layer. Default: 8/3 of the width with a gate, rounded up to a multiple of 256; 4 times
    the width without."""
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

    def rules(self) -> Iterator[str]:
        """Yield the faults between the keys of a model: heads divide the width, and groups the heads."""
        width, heads, groups = self.hidden_size, self.num_attention_heads, self.num_key_value_heads
        sizes = f"hidden_size = {width} with num_attention_heads = {heads}"
        if width % heads > 0:
            yield f"{sizes}: the heads must divide the width. Choose a hidden_size that is a multiple of their number."
        elif self.kind == "llama" and width // heads % 2 > 0:
            yield f"{sizes}: rotary positions need an even number of features per head. Choose an even quotient."

        sizes = f"num_attention_heads = {heads} with num_key_value_heads = {groups}"
        if self.kind == "gpt2" and groups < heads:
            yield f'{sizes}: kind = "gpt2" has no groups of heads. Leave num_key_value_heads out.'
        elif heads % groups > 0:
            yield f"{sizes}: the key/value heads must divide the attention heads. Choose a number that divides them."
        if self.kind == "gpt2":
            why = 'kind = "gpt2" has its own parts. Leave the key out, or choose kind = "llama".'
            yield from self.refuse(("hidden_act", "use_qk_norm"), why)


class TrainConfig(Settings):
    """Batches, length and arithmetic."""

    seq_len: PositiveInt
    """Tokens predicted in each sequence."""
    global_batch: Size
    """Sequences in one optimizer step, over all ranks."""
    micro_batch: Size
    """Sequences in one forward pass of a rank; gradients accumulate until the global batch is full."""
    steps: Annotated[int, Field(ge=1, le=1 << 32)]
    """Optimizer steps."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: a GPU if there is one; one that torch does not see stops the run."""
    precision: Precision = "auto"
    """`bf16` is autocast over fp32 weights. `auto` uses it if it is faster."""
    compile: bool = False
    """Compile the model with torch.compile; on one GPU, a step of one micro-batch also runs as CUDA graphs."""
    activation_checkpointing: Recomputation = "none"
    """What is kept for the backward pass: everything, matrix products and attention, or only the input of each
    layer."""
    document_mask: bool = False
    """No attention across documents, and positions that count from each document's start: its BOS, or the EOS before
    it."""
    rows: Literal["windows", "packed"] = "windows"
    """`windows` follow one another in a shard. `packed`: whole documents side by side, apart as by `document_mask`; the
    loss of a step is the mean over its targets. Sets with conversations need it."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: a whole model on each rank, or FSDP2, which splits weights, gradients and optimizer state."""
    log_every: PositiveInt = 10
    """Steps between fetching, checking and writing losses."""
    smoke_steps: NonNegativeInt = 100
    """The loss must begin near ln(vocabulary size) and be lower after this many steps; 0: no such test."""
    spike_nats: PositiveFloat = 3.0
    """A loss that is more than this above the median of the last 50 steps stops the run. Raise it to pass a spike."""
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 1337
    """Decides the initial weights and the order of the data."""
    rehearsal: bool = False
    """Say missed goals and pass them, and ask for no budget; `train --rehearse` sets this and shrinks everything."""

    @property
    def tokens(self) -> int:
        """The tokens that all steps predict."""
        return self.steps * self.global_batch * self.seq_len

    def rules(self) -> Iterator[str]:
        """Yield the fault of a global batch that is not whole micro-batches."""
        if self.global_batch % self.micro_batch > 0:
            yield (
                f"global_batch = {self.global_batch} with micro_batch = {self.micro_batch}: the global batch must be "
                "whole micro-batches. Choose a micro_batch that divides it."
            )


class OptimizerConfig(Settings):
    """The optimizer: AdamW, or Muon for the layers' matrices and AdamW for the rest."""

    kind: Literal["adamw", "muon"] = "adamw"
    """`muon`: Muon updates the matrices of layers, and AdamW the rest."""
    lr: PositiveFloat
    """Peak learning rate of AdamW, and of Muon unless `muon_lr` is given."""
    muon_lr: PositiveFloat | None = None
    """Peak learning rate of Muon; by default `lr`, which fits both."""
    betas: tuple[Fraction, Fraction] = Field(default=(0.9, 0.95), strict=False)
    """Decay of the running means."""
    eps: PositiveFloat = 1e-8
    """Added to the denominator."""
    weight_decay: NonNegativeFloat = 0.1
    """Applied to matrices only."""
    grad_clip: PositiveFloat = 1.0
    """Largest L2 norm of the whole gradient."""

    def rules(self) -> Iterator[str]:
        """Yield the fault of a learning rate of Muon without Muon."""
        if self.kind == "adamw":
            yield from self.refuse(["muon_lr"], 'kind = "adamw" has no Muon. Leave it out, or choose kind = "muon".')


class ScheduleConfig(Settings):
    """Linear warm-up, then down to `min_lr_ratio` of the peak at the last step."""

    kind: Literal["cosine", "wsd"] = "cosine"
    """`cosine`: decay from the warm-up on. `wsd` (warm-up, stable, decay): the peak until the last `decay_steps`."""
    warmup_steps: NonNegativeInt = 0
    """Steps until the learning rate is at its peak."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate of the last step, as a fraction of the peak."""
    decay_steps: NonNegativeInt | None = None
    """Steps of the cooldown, which `wsd` requires; 0 for a run that cooldowns [fork
    from](guide.md#one-long-training-run-several-budgets). Its shape is `1-sqrt`, which [Hägele et
    al.](https://arxiv.org/abs/2405.18392) found best over a fifth of the steps."""

    def rules(self) -> Iterator[str]:
        """Yield the fault of steps of a cooldown that the kind does not have, or lacks."""
        if self.kind == "cosine":
            why = 'a cosine decays from the warm-up on. Leave it out, or choose kind = "wsd".'
            yield from self.refuse(["decay_steps"], why)
        elif self.kind == "wsd" and self.decay_steps is None:
            yield (
                'decay_steps: is missing, and kind = "wsd" needs it. Choose about a fifth of train.steps, or 0 for a '
                "training run whose checkpoints others begin from (`train --from`)."
            )


class CheckpointConfig(Settings):
    """A run also saves at the end of each phase, after the last step, and when it is interrupted."""

    every_steps: PositiveInt = 250
    """Steps between checkpoints."""
    keep_last: PositiveInt = 2
    """The newest checkpoints that are kept, beside milestones and the one with the best validation loss."""


class LogConfig(Settings):
    """Where the numbers of `metrics.jsonl` also go."""

    wandb_project: Text | None = None
    """A project of Weights & Biases (the extra `wandb`): [more](guide.md#train)."""


class CostConfig(Settings):
    """What the machine costs."""

    gpu_usd_per_hour: NonNegativeFloat = 0.0
    """The price of one GPU (one rank)."""
    other_usd: dict[str, NonNegativeFloat] = {}
    """What else is on the bill, by name: `{ upload = 8, storage = 3 }`."""
    peak_tflops: PositiveFloat | None = None
    """Dense bf16 peak of one device, for MFU; known for the usual GPUs."""
    cards: dict[str, PositiveFloat] = {}
    """For `fit`: the price of an hour by card, such as `"RTX A6000" = 0.49`."""

    def rules(self) -> Iterator[str]:
        """Yield the fault of a price for a card that nobody knows."""
        if unknown := [repr(name) for name in self.cards if name not in CARDS]:
            yield f"cards: no card is known as {' or '.join(unknown)}. Choose of: {', '.join(CARDS)}."


USD_GOALS = ("usd_per_loss", "marginal_usd_per_loss")
"""Goals of a phase in dollars for 1.0 of loss."""
_GOAL = r"[A-Za-z][A-Za-z0-9._-]* [<>]=? \d+(\.\d+)?"


class PhaseConfig(Settings):
    """Each phase ends with validation, samples, a checkpoint that is kept, and a line of the ledger. The run stops
    (exit status 3) at the end of a phase that missed its goal or has a pause, and at once if a phase overspent its
    budget. `train --go-on NAME` goes on, and every later gate holds."""

    name: Text
    """The phase's name in the ledger."""
    until_step: PositiveInt
    """The last step of the phase."""
    budget_usd: PositiveFloat | None = None
    """The run stops when the phase has cost more than this; needs `cost.gpu_usd_per_hour`."""
    goal: Annotated[str, in_form(_GOAL, 'a score, <, <=, > or >=, and a number, such as "val_loss < 4.0"')] | None = (
        None
    )
    """`val_loss < 4.0`, `loss` (the mean of the last 50 steps), a score (`web_bpb < 1.10`), `usd_per_loss` (dollars
    for 1.0 of loss in this phase) or `marginal_usd_per_loss` (between the last two validations). The last two are
    missed if the loss did not fall."""
    pause: bool = False
    """Stop at the end of the phase, to look at the ledger and the samples; not after the last step."""
    milestones: list[PositiveInt] = []
    """Further steps of the phase at which the model is sampled, and whose checkpoints are kept."""


class TrainRecipe(Settings):
    """A whole train recipe, with every default filled in."""

    name: Text
    """The name of the recipe."""
    model: ModelConfig
    train: TrainConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    cost: CostConfig = CostConfig()
    phases: list[PhaseConfig] = []

    def rules(self) -> Iterator[str]:
        """Yield the faults between tables: lengths and steps that do not fit, phases that do not follow each other."""
        steps, length, context = self.train.steps, self.train.seq_len, self.model.max_position_embeddings
        if length > context:
            yield (
                f"train.seq_len = {length} with model.max_position_embeddings = {context}: sequences must fit in the "
                f"model's context. Lower seq_len, or raise it: --set model.max_position_embeddings={length}."
            )
        warmup, decay = self.schedule.warmup_steps, self.schedule.decay_steps or 0
        if warmup + decay > steps:
            given = f"schedule.warmup_steps = {warmup}" + (f" and schedule.decay_steps = {decay}" if decay else "")
            remedy = "warm-up and cooldown must fit in the training run. Lower them or raise steps."
            yield f"{given} with train.steps = {steps}: {remedy}"
        for name, count in shared_names(self.phases):
            yield f"phases: {count} phases are named {name!r}. Give each a unique name."
        begin, known = 0, ["val_loss", "loss", "val_perplexity", *USD_GOALS, *self.eval.score_names]
        has_names = are_named([*self.eval.sets, *self.eval.tasks])
        for name, phase in zip(item_names(self.phases), self.phases, strict=True):
            # Each phase begins where the one before it ends.
            place, end = f"phases.{name}", phase.until_step
            if phase.budget_usd is not None and self.cost.gpu_usd_per_hour == 0:
                yield f"{place}.budget_usd: a budget needs a price. Set cost.gpu_usd_per_hour."
            if end <= begin:
                yield f"{place}.until_step = {end}: expected more than {begin}, where the phase begins."
            last = min(end, steps)
            for step in list_of(phase.milestones):
                if step <= begin or step > last:
                    yield f"{place}.milestones: {step}: expected a step of the phase, after {begin} and until {last}."
            begin = end
            # Only a loss, or a score that the recipe takes, can be a goal.
            goal: Any = phase.goal
            score = goal.split()[0] if isinstance(goal, str) else ""
            if has_names and score and score not in known:
                yield f"{place}.goal = {goal!r}: no score is named {score!r}.{nearest(score, known)}"
            elif score in USD_GOALS and self.cost.gpu_usd_per_hour == 0:
                yield f"{place}.goal = {goal!r}: dollars need a price. Set cost.gpu_usd_per_hour."

    @property
    def milestones(self) -> set[int]:
        """Steps whose checkpoints are saved and never deleted."""
        return {step for phase in self.phases for step in (phase.until_step, *phase.milestones)}
