"""`plan`: say what a build of a recipe reads, writes, takes and costs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.flags import add_network, add_recipe, read_network
from shards.terminal.arguments import add_workers, number_in
from shards.terminal.command import WHOLE

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

    recipe = load_recipe(options.recipe, overrides=options.overrides, progress=True)
    found = plan_set(
        recipe,
        probe=not options.no_probe,
        workers=options.workers,
        gpu_usd_per_hour=options.gpu_usd_per_hour,
        network=read_network(options),
    )
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        print_plan(recipe, found)
    out = options.out or Path()
    check_room(found.disk_needs(options.work or out, out), REMEDY)
    return WHOLE
