"""Train a model on a shard set; the same command again resumes where training stopped.

The exit status is 3 at an off-ramp: the goal of a phase was missed, or its budget is spent. A checkpoint is saved then,
and after SIGINT or SIGTERM.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError, remedy_of
from shards.terminal.amounts import format_amount
from shards.terminal.arguments import add_recipe, parse_path, parse_place, parse_size
from shards.terminal.display import say
from shards.terminal.program import WHOLE, Outcome, Row

if TYPE_CHECKING:
    from shards.stores.cache import Cache
    from trainer.train.loop import TrainingLoop

OFF_RAMP = 3
"""The exit status of training that stopped at an off-ramp."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `train`."""
    add_recipe(parser, "a train recipe (TOML), or the name of a shipped one", "--set train.steps=100")
    parser.add_argument(
        "--shards",
        type=parse_place,
        required=True,
        metavar="SET",
        help="the shard set: a folder, s3://..., gs://..., az://... or hf://...",
    )
    parser.add_argument(
        "--run", type=parse_path, required=True, metavar="RUN", help="folder for checkpoints and metrics"
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=parse_path,
        metavar="CHECKPOINT",
        help="begin RUN from a checkpoint of another training run, such as a milestone before a cool-down; give it "
        "again to resume RUN",
    )
    parser.add_argument(
        "--go-on",
        action="store_true",
        help="continue past missed goals, spent budgets, a failed smoke test and loss spikes",
    )
    group = parser.add_argument_group("a set that is not on this machine")
    group.add_argument(
        "--cache",
        type=parse_path,
        metavar="DIR",
        help="keep its shards in DIR, which all ranks and runs of this machine may share (default: "
        "tokenmill/shards in $XDG_CACHE_HOME or ~/.cache)",
    )
    group.add_argument(
        "--cache-limit",
        metavar="SIZE",
        help="the most that DIR may hold, such as 50GB: at least two shards (default: half of the free disk space, "
        "at most 100 GB)",
    )


def run(options: argparse.Namespace) -> Outcome | int:
    """Run `train`; return how it ended, on the first rank, with its exit status: `tokenmill.__main__` lists them."""
    from trainer.recipe import load_train_recipe

    recipe = load_train_recipe(options.recipe, options.overrides)
    wait_without_spinning()

    from trainer.session import open_session
    from trainer.train.loop import run_training

    show: Callable[[str], None] = say if is_first_rank() else lambda message: None
    try:
        # Nothing has begun yet: what is wrong here is refused.
        cache = _open_cache(options, show)
        session = open_session(recipe, options.shards, options.run, say=show, start=options.start, cache=cache)
    except OSError as error:  # such as a disk too small for a checkpoint; nothing has begun
        raise InputError(f"{error}{remedy_of(error)}") from error
    with closing(session):
        # From here on a failure leaves a run that can be resumed.
        ended = run_training(session, show, go_on=options.go_on)
        status = 128 + ended.interrupted_by if ended.interrupted_by else WHOLE
        if ended.off_ramp is not None:
            show(f"stopped: {ended.off_ramp}. {session.saved} was saved; --go-on continues from there.")
            status = OFF_RAMP
        return describe_outcome(ended, status) if is_first_rank() else status


def _open_cache(options: argparse.Namespace, show: Callable[[str], None]) -> Cache | None:
    """Return for `train` the cache of a set that is not on this machine; None for a set in a folder.

    Raises:
        InputError: the flags name no folder that can be used, or no size.
    """
    from shards.stores.cache import Cache
    from shards.stores.hub_client import quiet_hub_client
    from shards.stores.hub_store import HUB_SCHEME

    limit = parse_size("--cache-limit", options.cache_limit) if options.cache_limit else None
    if isinstance(options.shards, Path):
        if options.cache or limit is not None:
            show(f"{options.shards} is on this machine: --cache and --cache-limit are not used")
        return None
    if options.shards.startswith(HUB_SCHEME):
        quiet_hub_client()
    cache = Cache(options.cache, limit)
    show(f"shards are kept in {cache.folder}, at most {format_amount(cache.limit, 'bytes')}")
    return cache


def wait_without_spinning() -> None:
    """Let OpenMP's threads of `train` and `fit` sleep while they wait; only before torch is imported.

    Threads of a CPU step wait for each other thousands of times. By default they spin for milliseconds, which on two
    cores shared with other processes made a step of the demo 3 to 5 times slower (means of 2.6 s against 0.7 s).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def is_first_rank() -> bool:
    """Return whether this process of `train` speaks for all that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def describe_outcome(outcome: TrainingLoop, exit_status: int) -> Outcome:
    """Return how `train` ended: its totals, then its phases."""
    from shards.format.windows.window_reader import account_tokens
    from trainer.evaluation.evaluate import describe_counts
    from trainer.evaluation.scores import show_score
    from trainer.ledger import summarise_phases

    session = outcome.session
    # The end in numbers: steps and tokens, then the last losses.
    last_step = outcome.log.last("loss")
    validation = outcome.log.last("val_loss")
    status = "stopped" if outcome.off_ramp else "interrupted" if outcome.interrupted_by else "complete"
    names = [source.name for source in session.shard_set.manifest.sources]
    result: Row = {
        "status": status,
        "run": str(session.run),
        "checkpoint": str(session.saved),
        "steps": session.step,
        "epochs": round(session.windows / session.order.per_epoch, 4),
        **account_tokens(session.shard_set.splits["train"], names, session.order, session.windows),
        "short_shards": len(session.order.short_shards),
        "loss": last_step.get("loss"),
        **{key: value for key, value in validation.items() if key != "step"},
        "validated_at_step": validation.get("step"),
        "seconds": round(outcome.seconds, 3),
        "usd": outcome.log.last("usd").get("usd"),
        "off_ramp": outcome.off_ramp,
    }
    phases = summarise_phases(session.recipe.phases, outcome.log.records)
    # A table has a row for each score, with its error; below it is what was counted.
    scores = {name: show_score(**score) for name, score in result.get("scores", {}).items()}
    cells = {name: value for name, value in result.items() if name not in ("scores", "score_notes")} | scores
    totals = [{"name": name.replace("_", " "), "value": value} for name, value in cells.items() if value is not None]
    counts = describe_counts(result.get("score_notes", {}))
    return Outcome({**result, "phases": phases}, [session.recipe.name, totals, *counts, phases], exit_status)
