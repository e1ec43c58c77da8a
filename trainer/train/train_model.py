"""Train a model, as `tokenmill train` does, for Python programs: errors are exceptions, the result is an object.

result = trainer.train_model("demo", shards="out/demo", run="out/demo-run")
model = trainer.load_model("out/demo-run").model
"""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from shards import ShardSetError
from shards.errors import InputError, RunError, any_remedy, plural
from shards.format.windows.window_reader import account_tokens
from shards.stores.cache import Cache
from shards.stores.cache_store import CacheStore
from shards.stores.open import scheme_of
from shards.stores.retry import StoreError
from shards.terminal.amounts import format_amount
from shards.terminal.display import JsonObject, say
from shards.terminal.hints import nearest
from shards.terminal.progress import show_progress
from shards.terminal.reporter import Note
from trainer.checkpoint.folders import locate_checkpoint
from trainer.device import wait_for_ranks
from trainer.ledger import summarise_phases
from trainer.metrics import MetricsLog
from trainer.model.decoder import count_parameters
from trainer.recipe import TrainRecipe, load_train_recipe
from trainer.run_folder import read_run_record, update_run_record
from trainer.session import Session, open_session
from trainer.train.loop import TrainingLoop, catch_signals
from trainer.train.step import open_training_windows
from trainer.train.trackers import open_wandb
from trainer.weights.given_weights import GivenWeights, open_weights
from trainer.weights.transformers_folder import SERVERS, list_servers


@dataclass(frozen=True)
class TrainingResult:
    """How a training ended."""

    status: Literal["complete", "stopped", "interrupted"]
    """`stopped` at an off-ramp, `interrupted` by a signal. The same call goes on from the checkpoint."""
    checkpoint: Path
    step: int
    figures: JsonObject
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
    weights: str | Path | GivenWeights | None = None,
    cache: str | Path | None = None,
    cache_limit: int | None = None,
    go_on: str | None = None,
    progress: bool = False,
) -> TrainingResult:
    """Train a model on a shard set; the same call again resumes where training stopped.

    Args:
        recipe: a train recipe's file, the name of a shipped recipe, or a recipe.
        shards: the shard set: a folder, or its address.
        run: the folder for checkpoints and metrics.
        overrides: `KEY=VALUE` strings that change the recipe, as `--set` does: `["train.steps=100"]`.
        start: a checkpoint of another run from which this one begins.
        weights: a run, or a folder of transformers, whose weights this one begins with, on any set whose tokenizer
            begins with theirs. A recipe's file may leave [model] out then, and the smoke test of the loss is off.
        cache: the folder that keeps the shards of a set that is not on this machine; in the user's cache when None.
        cache_limit: the most bytes that it may hold: half of the free disk space, at most 100 GB, when None.
        go_on: the phase past whose missed goal, spent budget or pause to train; "" is the one at which the run waits.
        progress: print on stderr what `tokenmill train` prints.

    Raises:
        InputError: the recipe, the set, the run's folder or the machine cannot be used. Nothing has begun.
        RunError: training failed on the way; call again to go on from the last checkpoint.
    """
    show: Note = say if progress and is_first_rank() else lambda message: None
    if weights is not None and not isinstance(weights, GivenWeights):
        weights = open_weights(Path(weights), show)
    if isinstance(recipe, TrainRecipe):
        loaded = recipe
    else:
        loaded = load_train_recipe(Path(recipe), overrides, model=weights and weights.trained.model.config)
    if weights is not None:  # which do not guess
        loaded = loaded.with_values(train=loaded.train.with_values(smoke_steps=0))
    place = shards if scheme_of(shards) else Path(shards)
    phases = [phase.name for phase in loaded.phases]
    if go_on and go_on not in phases:
        known = nearest(go_on, phases) if phases else " It has none: leave --go-on out."
        raise InputError(f"--go-on {go_on!r}: the recipe has no such phase.{known}")
    try:
        # Nothing has begun yet: what is wrong here is refused.
        kept = _open_cache(place, cache, cache_limit, show)
        began = locate_checkpoint(start) if start else None
        session = open_session(loaded, place, Path(run), say=show, start=began, weights=weights, cache=kept)
    except OSError as error:  # such as a disk too small for a checkpoint
        raise InputError(f"{error}{any_remedy(error)}") from error
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
    cache = Cache(folder, limit)
    show(f"shards are kept in {cache.folder}, at most {format_amount(cache.limit, 'bytes')}")
    return cache


def is_first_rank() -> bool:
    """Return whether this process of a training speaks for all that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def run_training(session: Session, say: Note, *, go_on: str | None = None, progress: bool = False) -> TrainingLoop:
    """Train until the recipe's last step, an off-ramp, or until asked to stop.

    Args:
        session: the run.
        say: called with each line the user should know.
        go_on: the phase to pass, as for `train_model`.
        progress: show on stderr how far it is.

    Returns:
        The loop as it ended: after the last step, interrupted, or at an off-ramp.

    Raises:
        RunError: the loss is not finite or rises suddenly, memory is too small, the data cannot be read, or metrics or
            a checkpoint cannot be written. Earlier checkpoints are whole; the message names the last one.
        InputError: a line of the run's metrics.jsonl is not metrics, the first shard cannot be fetched, or the phase to
            pass has not stopped the run.
    """
    recipe = session.recipe
    first_rank = session.rank == 0
    parameters = count_parameters(recipe.model, session.model.vocab_size)
    where = f"{session.ranks} x {session.device.type}" if session.ranks > 1 else str(session.device)
    say(
        f"{plural(parameters, 'parameter')} on {where} in {session.precision}, "
        f"{plural(torch.get_num_threads(), 'thread')}"
    )
    if list_servers(recipe.model) != SERVERS:
        say("an export of this model runs in transformers alone, not in vLLM or llama.cpp: see model.hidden_act")
    for phase in recipe.phases:
        if phase.until_step > recipe.train.steps:
            say(f"phase {phase.name!r} ends at step {phase.until_step:,}, after the last one: its goal is not judged")
    began = time.perf_counter()
    _fetch_first_shard(session, progress=progress and first_rank)
    # The weights after the last step are tried with the batch that would follow.
    stop = session.windows + (max(recipe.train.steps - session.step, 0) + 1) * recipe.train.global_batch
    try:
        with (
            closing(MetricsLog(session.run, step=session.step, write=first_rank)) as log,
            open_training_windows(session.shard_set, recipe.train, stop=stop) as windows,
            show_progress(recipe.name, unit="steps", before=session.step, show=progress and first_rank) as meter,
            catch_signals(say) as signals,
            ExitStack() as opened,
        ):
            wait_for_ranks()  # Every rank has read the log before one adds to it.
            session.seconds = max(session.seconds, log.seconds)
            if first_rank and session.step < recipe.train.steps:
                processes = read_run_record(session.run).processes
                update_run_record(session.run, processes=[*processes, (round(time.time(), 3), session.seconds)])
            if log.removed:
                say(
                    f"metrics.jsonl: removed {plural(log.removed, 'line')} after step {session.step}; these are done "
                    "again"
                )
            if session.step and log.last("step").get("step") != session.step:
                say(f"metrics.jsonl does not go on to step {session.step}: phases and costs count what it has")
            before = log.last("score_notes").get("score_notes", {})
            for scorer in session.scorers:
                if before.get(scorer.name, scorer.notes).get("sha256") != scorer.notes["sha256"]:
                    say(f"{scorer.name}: scored on other text than before; its scores do not compare with those")
            if first_rank:
                log.track = open_wandb(session.run, recipe, log.records, say, opened)
            loop = TrainingLoop(session, windows, log, signals, meter, say, go_on, began)
            loop.take_steps()
            return loop
    except (ShardSetError, StoreError, OSError) as error:
        raise RunError(
            f"{error}{any_remedy(error)}\nStopped after step {session.step}. {session.describe_saved()}"
        ) from error


def _fetch_first_shard(session: Session, *, progress: bool) -> None:
    """Before the loop, fetch the shard of the next step from a remote store, and show how far that is.

    Raises:
        InputError: it cannot be fetched, or its bytes are not what the manifest says.
        OSError: the cache cannot be written to.
    """
    store = session.shard_set.store
    if not isinstance(store, CacheStore) or session.step >= session.recipe.train.steps:
        return
    shard = session.shard_set.splits["train"][session.order.visit(session.windows).shard]
    with (
        show_progress(f"fetch {shard.name}", unit="bytes", show=progress) as meter,
        store.hold(shard.tokens_file.name, progress=meter),
    ):
        pass


def _describe_end(ended: TrainingLoop) -> TrainingResult:
    """Return how a training ended: its totals, the last losses, its phases."""
    session = ended.session
    assert session.saved is not None, "training ends with a checkpoint"
    status = "stopped" if ended.off_ramp else "interrupted" if ended.interrupted_by else "complete"
    validation = ended.log.last("val_loss")
    figures: JsonObject = {
        "status": status,
        "run": str(session.run),
        "checkpoint": str(session.saved),
        "steps": session.step,
        "epochs": round(session.windows / session.order.per_epoch, 4),
        **account_tokens(session.shard_set, session.order, session.windows),
        "short_shards": len(session.order.short_shards),
        "chat": session.shard_set.manifest.chat is not None,
        "loss": ended.log.last("loss").get("loss"),
        **{key: value for key, value in validation.items() if key not in ("step", "val_loss_by_part")},
        "validated_at_step": validation.get("step"),
        "seconds": round(ended.seconds, 3),
        "usd": ended.log.last("usd").get("usd"),
        "off_ramp": ended.off_ramp,
        "waits_at": ended.waits_at,
        "phases": summarise_phases(session.recipe.phases, ended.log.records),
    }
    return TrainingResult(status, session.saved, session.step, figures, ended.interrupted_by)
