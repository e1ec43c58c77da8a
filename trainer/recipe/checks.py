"""The rules between the keys of a train recipe, and reading one: every fault in one report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shards.config import (
    Changes,
    Document,
    apply_changes,
    check_kind,
    check_settings,
    item_names,
    list_of,
    read_document,
)
from shards.terminal.gone import nearest
from shards.terminal.shipped_recipes import find_recipe, shipped_folder
from trainer.recipe.schema import ModelConfig, ScheduleConfig, TrainRecipe

SHIPPED = shipped_folder(Path(__file__).parents[1], "train")
"""The folder of the train recipes that come with the distribution."""


def load_train_recipe(
    path: Path, overrides: Sequence[str] = (), *, changes: Changes = (), trained: Document | None = None
) -> TrainRecipe:
    """Read a train recipe and apply `KEY=VALUE` overrides; before them `changes`, as if the file had them.

    The path is a TOML file, the JSON of a run folder, or the name of a shipped recipe. Of a file that is to score a
    model which was `trained` by another recipe, only `[eval]` counts; it may hold nothing else.

    Raises:
        InputError: with every fault of the file and of the overrides.
    """
    # File, overrides, schema, rules: all faults in one report.
    file = find_recipe(path, SHIPPED)
    data: Document = read_document(file)
    check_kind(data, "train", str(file))
    faults: list[str] = []
    if trained is not None:
        known = list(TrainRecipe.model_fields)
        faults = [f"{key}: unknown key.{nearest(key, known)}" for key in data if key not in known]
        data = {**trained, "phases": [], "eval": data.get("eval", {})}
    faults += apply_changes(data, changes, overrides)
    # A recipe that was found by its name may be anywhere: its paths begin where they would in a checkout at the working
    # directory.
    folder = file.parent if file == Path(path) else Path("recipes/train")
    return check_settings(TrainRecipe, data, where=str(file), checks=(check_rules,), faults=faults, context=folder)


def parse_recipe(tables: Document, where: str = "recipe of the checkpoint") -> TrainRecipe:
    """Turn the train recipe that a checkpoint holds back into the model; messages begin with `where`.

    Raises:
        InputError: this version does not know such a recipe.
    """
    return check_settings(TrainRecipe, tables, where=where, checks=(check_rules,))


def check_rules(recipe: TrainRecipe) -> Iterator[str]:
    """Yield the faults between keys of a train recipe, of which `read_partly` may have read a part."""
    model, train, optimizer = recipe.model, recipe.train, recipe.optimizer
    yield from _check_heads(model)
    if model.kind == "gpt2":
        for key, plain in (("hidden_act", "silu"), ("use_qk_norm", False)):
            if getattr(model, key) != plain:
                yield f'model.{key}: kind = "gpt2" has its own parts. Leave the key out, or choose kind = "llama".'

    if train.global_batch % train.micro_batch > 0:
        yield (
            f"train.global_batch = {train.global_batch} with train.micro_batch = {train.micro_batch}: the global "
            "batch must be whole micro-batches. Choose a micro_batch that divides it."
        )

    length, context = train.seq_len, model.max_position_embeddings
    if length > context:
        yield (
            f"train.seq_len = {length} with model.max_position_embeddings = {context}: sequences must fit in the "
            "model's context. Raise max_position_embeddings or lower seq_len."
        )

    yield from _check_schedule(recipe.schedule, steps=train.steps)

    if optimizer.kind == "adamw" and optimizer.muon_lr is not None:
        yield 'optimizer.muon_lr: optimizer.kind = "adamw" has no Muon. Leave it out, or choose kind = "muon".'

    yield from _check_phases(recipe)


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


def _check_schedule(schedule: ScheduleConfig, *, steps: int) -> Iterator[str]:
    # Which keys belong to which kind, then whether warm-up and decay fit.
    warmup_steps, decay_steps = schedule.warmup_steps, schedule.decay_steps
    place = f"schedule.warmup_steps = {warmup_steps} with train.steps = {steps}"
    if schedule.kind == "cosine" and decay_steps is not None:
        yield 'schedule.decay_steps: a cosine decays from the warm-up on. Leave it out, or choose kind = "wsd".'
    elif schedule.kind == "wsd" and decay_steps is None:
        yield (
            'schedule.decay_steps: is missing, and kind = "wsd" needs it. Choose about a fifth of train.steps, or 0 '
            "for a training run whose checkpoints others begin from (`train --from`)."
        )
    if warmup_steps > steps:
        yield f"{place}: the warm-up must end within the training run. Lower warmup_steps or raise steps."
    elif decay_steps and warmup_steps + decay_steps > steps:
        yield (
            f"{place} and schedule.decay_steps = {decay_steps}: both must fit in the training run. Lower one or raise "
            "steps."
        )


def _check_phases(recipe: TrainRecipe) -> Iterator[str]:
    begin, known = 0, ["val_loss", "loss", *recipe.eval.score_names]
    for name, phase in zip(item_names(recipe.phases), recipe.phases, strict=True):
        # Each phase begins where the one before it ends.
        place, end = f"phases.{name}", phase.until_step
        if phase.budget_usd is not None and recipe.cost.gpu_usd_per_hour == 0:
            yield f"{place}.budget_usd: a budget needs a price. Set cost.gpu_usd_per_hour."
        if end <= begin:
            yield f"{place}.until_step = {end}: expected more than {begin}, where the phase begins."
        last = min(end, recipe.train.steps)
        for step in list_of(phase.milestones):
            if step <= begin or step > last:
                yield f"{place}.milestones: {step}: expected a step of the phase, after {begin} and until {last}."
        begin = end
        # Only a loss, or a score that the recipe takes, can be a goal.
        goal: Any = phase.goal
        if isinstance(goal, str) and (score := goal.split()[0]) not in known:
            yield f"{place}.goal = {goal!r}: no score is named {score!r}.{nearest(score, known)}"
