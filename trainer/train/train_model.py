"""Train a model, as `tokenmill train` does, for Python programs: errors are exceptions, the result is an object.

result = trainer.train_model("demo", shards="out/demo", run="out/demo-run")
model = trainer.load_model("out/demo-run").model
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shards.errors import InputError, remedy_of
from shards.format.windows.window_reader import account_tokens
from shards.stores.cache import Cache
from shards.stores.hub_client import quiet_hub_client
from shards.stores.hub_store import HUB_SCHEME
from shards.stores.open import scheme_of
from shards.terminal.amounts import format_amount
from shards.terminal.display import say
from shards.terminal.reporter import Note
from trainer.ledger import summarise_phases
from trainer.recipe import TrainRecipe, load_train_recipe
from trainer.session import open_session
from trainer.train.loop import TrainingLoop, run_training


@dataclass(frozen=True)
class TrainingResult:
    """How a training ended."""

    status: Literal["complete", "stopped", "interrupted"]
    """`stopped` at an off-ramp, `interrupted` by a signal. The same call goes on from the checkpoint."""
    checkpoint: Path
    step: int
    figures: dict[str, Any]
    """What `tokenmill train --json` prints: losses, scores, tokens by source, epochs, seconds, dollars, phases."""
    interrupted_by: int = 0
    """The number of the signal, or 0."""


def train_model(
    recipe: str | Path | TrainRecipe,
    *,
    shards: str | Path,
    run: str | Path,
    overrides: Sequence[str] = (),
    start: str | Path | None = None,
    cache: str | Path | None = None,
    cache_limit: int | None = None,
    go_on: bool = False,
    progress: bool = False,
) -> TrainingResult:
    """Train a model on a shard set; the same call again resumes where training stopped.

    Args:
        recipe: a train recipe's file, the name of a shipped recipe, or a recipe.
        shards: the shard set: a folder, or its address.
        run: the folder for checkpoints and metrics.
        overrides: `KEY=VALUE` strings that change the recipe, as `--set` does: `["train.steps=100"]`.
        start: a checkpoint of another run from which this one begins.
        cache: the folder that keeps the shards of a set that is not on this machine; in the user's cache when None.
        cache_limit: the most bytes that it may hold: half of the free disk space, at most 100 GB, when None.
        go_on: train past missed goals, spent budgets, a failed smoke test and spikes of the loss.
        progress: print on stderr what `tokenmill train` prints.

    Raises:
        InputError: the recipe, the set, the run's folder or the machine cannot be used. Nothing has begun.
        RunError: training failed on the way; call again to go on from the last checkpoint.
    """
    loaded = recipe if isinstance(recipe, TrainRecipe) else load_train_recipe(Path(recipe), overrides)
    show: Note = say if progress and is_first_rank() else lambda message: None
    place = shards if scheme_of(shards) else Path(shards)
    try:
        # Nothing has begun yet: what is wrong here is refused.
        kept = _open_cache(place, cache, cache_limit, show)
        began = Path(start) if start else None
        session = open_session(loaded, place, Path(run), say=show, start=began, cache=kept)
    except OSError as error:  # such as a disk too small for a checkpoint
        raise InputError(f"{error}{remedy_of(error)}") from error
    with closing(session):
        # From here on a failure leaves a run that can be resumed.
        return _describe_end(run_training(session, show, go_on=go_on, progress=progress))


def _open_cache(place: Path | str, folder: str | Path | None, limit: int | None, show: Note) -> Cache | None:
    """Return the cache of a set that is not on this machine; None for a set in a folder.

    Raises:
        InputError: the folder cannot be used, or the limit is too small.
    """
    if isinstance(place, Path):
        if folder or limit is not None:
            show(f"{place} is on this machine: no cache is used")
        return None
    if place.startswith(HUB_SCHEME):
        quiet_hub_client()
    cache = Cache(Path(folder) if folder else None, limit)
    show(f"shards are kept in {cache.folder}, at most {format_amount(cache.limit, 'bytes')}")
    return cache


def is_first_rank() -> bool:
    """Return whether this process of a training speaks for all that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def _describe_end(ended: TrainingLoop) -> TrainingResult:
    """Return how a training ended: its totals, the last losses, its phases."""
    session = ended.session
    assert session.saved is not None, "training ends with a checkpoint"
    status = "stopped" if ended.off_ramp else "interrupted" if ended.interrupted_by else "complete"
    validation = ended.log.last("val_loss")
    names = [source.name for source in session.shard_set.manifest.sources]
    figures: dict[str, Any] = {
        "status": status,
        "run": str(session.run),
        "checkpoint": str(session.saved),
        "steps": session.step,
        "epochs": round(session.windows / session.order.per_epoch, 4),
        **account_tokens(session.shard_set.splits["train"], names, session.order, session.windows),
        "short_shards": len(session.order.short_shards),
        "loss": ended.log.last("loss").get("loss"),
        **{key: value for key, value in validation.items() if key != "step"},
        "validated_at_step": validation.get("step"),
        "seconds": round(ended.seconds, 3),
        "usd": ended.log.last("usd").get("usd"),
        "off_ramp": ended.off_ramp,
        "phases": summarise_phases(session.recipe.phases, ended.log.records),
    }
    return TrainingResult(status, session.saved, session.step, figures, ended.interrupted_by)
