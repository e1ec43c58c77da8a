"""`plan`: say what a build of a recipe reads, writes, takes and costs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.flags import add_network, add_recipe, read_network
from shards.errors import InputError
from shards.terminal.arguments import add_workers, number_in
from shards.terminal.command import COULD_NOT_RUN, WHOLE
from shards.terminal.display import say

if TYPE_CHECKING:
    from shards.terminal.arguments import Subparsers


def add_command(commands: Subparsers) -> None:
    """Add `plan`."""
    parser = commands.add_parser(
        "plan",
        help="estimate what a build reads, writes, takes and costs",
        description="Estimate what a build reads, writes, takes and costs, from the files' footers and from a few "
        "megabytes of every source that go through the build's own steps. Writes nothing.",
    )
    add_recipe(parser)
    parser.add_argument(
        "--no-probe", action="store_true", help="read footers only, no text; token counts are then a guess"
    )
    parser.add_argument(
        "--count-duplicates",
        action="store_true",
        help="read and hash all text that the build would read, 20 bytes of memory a document; without it, documents "
        "with equal text are found in small local sources, in the sample and in the set that is in --out",
    )
    add_workers(parser)
    parser.add_argument(
        "--gpu-usd-per-hour",
        type=number_in(0, 10**6),
        metavar="USD",
        help="also estimate what a GPU costs that waits for the build",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="check that the set fits on the disk of this folder (default: the working directory)",
    )
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="check that scratch files fit on the disk of this folder"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_network(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the plan and return the exit status."""
    from pipeline.build.api import load_recipe, plan_set
    from pipeline.cli.plan_display import print_plan
    from pipeline.estimate.disk import REMEDY
    from shards.stores.files import check_room

    if options.no_probe and options.count_duplicates:
        raise InputError("plan: --no-probe reads no text and --count-duplicates reads all of it. Give one of them.")
    recipe = load_recipe(options.recipe, overrides=options.overrides, progress=True)
    found = plan_set(
        recipe,
        probe=not options.no_probe,
        duplicates="in all text" if options.count_duplicates else "cheaply",
        out=options.out,
        workers=options.workers,
        gpu_usd_per_hour=options.gpu_usd_per_hour,
        network=read_network(options),
    )
    out = options.out or Path()
    problems = [found.refusal] if found.refusal else []
    try:
        check_room(found.disk_needs(options.work or out, out), REMEDY)
    except InputError as error:
        problems += map(str, error.problems)
    if options.json:
        print(json.dumps(found.to_dict() | {"problems": problems}, indent=2))
    else:
        print_plan(recipe, found)
    for problem in problems:
        say(f"error: {problem}")
    return COULD_NOT_RUN if problems else WHOLE
