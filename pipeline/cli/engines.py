"""The flags that say where the tasks of a build run, and the executor that they ask for."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.flags import ENGINES
from shards.errors import InputError
from shards.terminal.arguments import positive_number

if TYPE_CHECKING:
    from pipeline.engine.executors import Executor


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add `--engine`, `--workers` and `--ray-address`."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="local",
        help="where tasks run: in processes of this machine (default), or on a Ray cluster",
    )
    parser.add_argument(
        "--workers",
        type=positive_number,
        metavar="N",
        help="tasks that run at the same time (default: one per core of this machine; all that Ray has CPUs for)",
    )
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="head of the cluster with --engine ray, or "
        '"local" (default: RAY_ADDRESS, else the cluster of this machine, else local)',
    )


def open_executor(options: argparse.Namespace) -> Executor:
    """Return the executor that the flags ask for.

    Raises:
        InputError: the flag belongs to another engine, or the engine cannot be used.
    """
    # Only the engine that is asked for is imported.
    if options.engine == "ray":
        from pipeline.engine.ray_executor import RayExecutor
        from shards.terminal.display import say

        return RayExecutor(options.ray_address, workers=options.workers, say=say)
    if options.ray_address is not None:  # which would have no effect, silently
        raise InputError("--ray-address: only with --engine ray; this build has --engine local.")
    from pipeline.engine.executors import LocalExecutor

    measures = _may_measure(options.recipe) if "recipe" in options else True
    return LocalExecutor(options.workers or len(os.sched_getaffinity(0)), measures=measures)


def _may_measure(recipe: str) -> bool:
    """Return whether a recipe that is not read yet may measure documents: whether its text has the word `clean`."""
    try:
        return "clean" in Path(recipe).read_text(encoding="utf-8")
    except (OSError, ValueError):  # a shipped recipe, for example
        return True
