"""The flags that say where the tasks of a build run, and the executor that they ask for."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from pipeline.cli.flags import ENGINES
from shards.errors import InputError
from shards.terminal.arguments import positive_number

if TYPE_CHECKING:
    from pipeline.engine.executors import Executor

_FLAGS = {
    "ray": {"ray_address": "--ray-address"},
    "slurm": {
        "slurm": "--slurm",
        "slurm_elements": "--slurm-elements",
        "slurm_setup": "--slurm-setup",
    },
}
"""The flags that only one engine has."""


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add `--engine`, `--workers` and the flags of the engines."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="local",
        help="where tasks run: in processes of this machine (default), on a Ray cluster, or as Slurm job arrays",
    )
    parser.add_argument(
        "--workers",
        type=positive_number,
        metavar="N",
        help="tasks that run at the same time (default: one per core of this machine; all that Ray or Slurm allow)",
    )
    group = parser.add_argument_group("--engine ray")
    group.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help='head of the cluster, or "local" (default: RAY_ADDRESS, else the cluster of this machine, else local)',
    )
    group = parser.add_argument_group("--engine slurm")
    group.add_argument(
        "--slurm",
        action="append",
        metavar="KEY=VALUE",
        help="an option of sbatch: --slurm partition=main --slurm time=2:00:00 --slurm mem-per-cpu=4G",
    )
    group.add_argument(
        "--slurm-elements",
        type=positive_number,
        metavar="N",
        help="the most elements of a job array; each runs several tasks if need be (default: the cluster's limit)",
    )
    group.add_argument(
        "--slurm-setup", metavar="COMMAND", help="a shell command that runs on the node first: 'module load gcc'"
    )


def open_executor(options: argparse.Namespace) -> Executor:
    """Return the executor that the flags ask for.

    Raises:
        InputError: a flag belongs to another engine, or the engine cannot be used.
    """
    # A flag of another engine would have no effect, silently.
    for engine, flags in _FLAGS.items():
        given = [flag for name, flag in flags.items() if getattr(options, name) is not None]
        if given and options.engine != engine:
            raise InputError(f"{given[0]}: only with --engine {engine}; this build has --engine {options.engine}.")
    # Only the engine that is asked for is imported.
    if options.engine == "ray":
        from pipeline.engine.ray_executor import RayExecutor
        from shards.terminal.display import say

        return RayExecutor(options.ray_address, workers=options.workers, say=say)
    if options.engine == "slurm":
        from pipeline.engine.slurm_executor import SlurmExecutor
        from shards.terminal.display import say

        return SlurmExecutor(
            options.slurm or (),
            workers=options.workers,
            elements=options.slurm_elements,
            setup=options.slurm_setup or "",
            say=say,
        )
    from pipeline.engine.executors import LocalExecutor

    return LocalExecutor(options.workers or len(os.sched_getaffinity(0)))
