"""The price of an ablation before it runs: what its trainings take here, from a few measured steps of each model."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tokenizers import Tokenizer

from pipeline.recipe.schema import Recipe
from shards.terminal.program import Row
from tokenmill.experiments.ablation import Ablation, Training
from tokenmill.experiments.arms import list_eval_files
from trainer.commands.bench import bench
from trainer.recipe import TrainRecipe

BENCH_STEPS = 10
_FORWARD_SHARE = 1 / 3
"""Of a training step's work, that of predicting as many tokens: the backward pass takes twice as much."""


def price_ablation(ablation: Ablation, pending: Sequence[Training]) -> list[Row]:
    """Measure steps of each model on this machine, and return for each arm what its trainings take.

    Returns:
        For each arm its `trainings`, how many of them are `to_run`, `tokens` and `tokens_per_s` of each, and for those
        to run `hours` of one device, and `dollars`; both None if a step could not be measured.
    """
    os.environ["OMP_NUM_THREADS"] = str(ablation.config.threads)
    speeds: dict[str, float | None] = {}
    counted: set[str] = set()  # arms that share a seed may share a training
    rows: list[Row] = []
    for arm in ablation.arms:
        recipe = _settle_vocabulary(arm.train, arm.recipe)
        # Rates change no speed, but made-up text may diverge with one of them.
        steps = recipe.model_copy(
            update={"optimizer": recipe.optimizer.model_copy(update={"lr": 1e-4, "muon_lr": None})}
        )
        key = steps.model_dump_json()
        if key not in speeds:
            speeds[key] = bench(steps, BENCH_STEPS).get("tokens_per_s")
        # Arms with one model and batch have one speed.
        speed = speeds[key]
        # Of the pending trainings, those that no arm before has paid.
        own = {one.task.digest for one in pending if one.arm.name == arm.name} - counted
        counted |= own
        to_run = len(own)
        hours = None if not speed else to_run * (arm.tokens + _scored_tokens(recipe, arm.recipe)) / speed / 3600
        price = recipe.cost.gpu_usd_per_hour
        rows.append(
            {
                "arm": arm.name,
                "trainings": len(arm.seeds),
                "to_run": to_run,
                "tokens": arm.tokens,
                "tokens_per_s": speed,
                "hours": hours,
                "dollars": hours * price if price and hours is not None else None,
            }
        )
    return rows


def _scored_tokens(recipe: TrainRecipe, data: Recipe) -> float:
    """Return the tokens of all validations of a training, about, as tokens of training steps."""
    validations = -(-recipe.train.steps // recipe.eval.every_steps)
    tokens = min(recipe.eval.max_tokens, data.split.val_tokens)
    for one in recipe.eval.sets:
        # A token is three or four bytes of text, and compressed text a third of it: about a token for each stored byte.
        stored = sum(os.path.getsize(path) for _, paths in list_eval_files(one) for path in paths)
        tokens += min(one.max_tokens, stored or one.max_tokens)
    return validations * tokens * _FORWARD_SHARE


def _settle_vocabulary(train: TrainRecipe, data: Recipe) -> TrainRecipe:
    """Return a train recipe with the size of its vocabulary: its own, or that of the set."""
    if train.model.vocab_size is not None:
        return train
    file = data.tokenizer.file
    size = Tokenizer.from_file(str(file)).get_vocab_size() if file else data.tokenizer.vocab_size
    return train.model_copy(update={"model": train.model.model_copy(update={"vocab_size": size})})
