"""Measure the throughput of recipes: tokens/s, MFU and peak memory of real training steps.

Each recipe has a process of its own, so that none finds another's
memory, caches or compiled code, and that the failure of one costs no figure of the others. One GPU, or the CPU;
validation and checkpoints are in no figure. Takes minutes for each recipe, most of them to compile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError, plural
from shards.terminal.arguments import parse_path, positive_number
from shards.terminal.program import PROBLEMS, WHOLE, Outcome, Row
from trainer.commands.fit import add_set_of_vocabulary, expect_memory, settle_vocabulary
from trainer.commands.train import wait_without_spinning

if TYPE_CHECKING:
    from trainer.recipe import TrainRecipe

GOALS = {"tinystories-91m": 1_000_000, "gpuburnout-1b": 75_000}
"""Tokens a second on an H200 that shipped recipes should reach. These recipes are measured by default."""

NOTES = f"""MFU: 6 * weights in multiplications + 12 * layers * hidden_size * seq_len FLOP a token, no recomputation.
Loss: the mean of all steps, on made-up tokens. Peak: memory that torch allocated after the warm-up; fit: the memory
that `fit` expects, without margin and context. On a CPU the peak is the growth of the process's resident memory.
Goals on an H200, in tokens/s: {", ".join(f"{name} {goal:,}" for name, goal in GOALS.items())}."""

REMEDY = "If memory was too small: --set train.micro_batch=N (`fit` says what fits) or train.activation_checkpointing."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench`."""
    shipped = [Path(name) for name in GOALS]
    names = f"default: {', '.join(GOALS)}"
    parser.add_argument("recipes", type=parse_path, nargs="*", default=shipped, metavar="RECIPE", help=names)
    parser.add_argument(
        "--steps", type=positive_number, default=20, metavar="N", help="steps to time (default: %(default)s)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="override a key of the recipes",
    )
    add_set_of_vocabulary(parser)


def run(options: argparse.Namespace) -> Outcome:
    """Return what was measured; exit status 1 if a recipe failed, for example because memory was too small."""
    from shards.terminal.display import say
    from trainer.recipe import load_train_recipe

    if os.environ.get("WORLD_SIZE", "1") != "1":
        command = "tokenmill bench"
        raise InputError(f"bench measures one GPU; found torchrun's WORLD_SIZE. Start it without torchrun: {command}")
    loaded = [load_train_recipe(path, options.overrides) for path in options.recipes]
    recipes = [settle_vocabulary(recipe, options.shards) for recipe in loaded]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it leaves nothing behind either
    wait_without_spinning()
    rows = [bench(recipe, options.steps) for recipe in recipes]
    measured = [row for row in rows if "error" not in row]
    failed = [row for row in rows if "error" in row]
    for row in failed:
        say(f"error: {row['recipe']}: {row['error']}")
    shown = [measured, *NOTES.splitlines()] if measured else []
    return Outcome({"recipes": rows}, shown, PROBLEMS if failed else WHOLE)


def bench(recipe: TrainRecipe, steps: int) -> Row:
    """Measure a recipe in a process of its own.

    Returns:
        `recipe`, and either `error`, why it failed, or the figures of `time_steps` with `fit_gb`, the memory that `fit`
        expects.

    Raises:
        InputError: the recipe cannot run here.
    """
    from shards.terminal.display import say
    from trainer.commands.bench_steps import time_steps, write_made_up_set

    say(f"{recipe.name}: {plural(steps, 'step')} after the warm-up")
    spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with tempfile.TemporaryDirectory(prefix="trainer-bench-") as folder:
        shards = write_made_up_set(recipe, Path(folder))
        # Libraries print on stdout: their lines go to stderr, with the messages.
        with ProcessPoolExecutor(1, spawn, initializer=os.dup2, initargs=(2, 1)) as pool:
            try:
                figures = pool.submit(time_steps, recipe, shards, steps).result()
            except InputError:
                raise
            except KeyboardInterrupt:
                for worker in multiprocessing.active_children():
                    worker.terminate()  # else leaving the pool would wait for it
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the other recipes are measured
                traceback.print_exception(error)
                return {"recipe": recipe.name, "error": f"{error!r}. {REMEDY}"}
    return {"recipe": recipe.name, **figures, "fit_gb": expect_memory(recipe, figures["precision"])}
