"""Estimate what a build reads, writes, takes and costs. Keeps nothing.

The estimate comes from the files' footers and from a few megabytes of every source that go through the stages of a
build.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from pipeline.cli.flags import add_network, add_recipe, read_network
from shards.errors import InputError
from shards.terminal.arguments import number_in, positive_number
from shards.terminal.display import say
from shards.terminal.exit_status import COULD_NOT_RUN, WHOLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    add_recipe(parser)
    parser.add_argument(
        "--out",
        metavar="PLACE",
        help="where the set will be, a folder or s3://BUCKET/PREFIX (or gs, az): check that it fits on the disk of the "
        "folder (default: the working directory)",
    )
    parser.add_argument("--work", metavar="PLACE", help="the same for the work folder (default: OUT.work)")
    machines = parser.add_argument_group("machines")
    machines.add_argument(
        "--workers",
        type=positive_number,
        metavar="N",
        help="tasks at once, over all machines (default: one per core of this machine)",
    )
    machines.add_argument(
        "--cpus-per-node", type=positive_number, default=1, metavar="N", help="workers of one machine (default: 1)"
    )
    for what, about in (("node", "the machines cost"), ("gpu", "it costs to keep a GPU waiting for the build")):
        machines.add_argument(
            f"--{what}-usd-per-hour", type=number_in(0, 10**6), metavar="USD", help=f"also estimate what {about}"
        )
    add_network(parser)


def run(options: argparse.Namespace) -> int:
    """Print the plan and return the exit status."""
    from pipeline.builder.disk import REMEDY
    from pipeline.builder.python_api import load_recipe
    from pipeline.cli.plan_display import print_plan
    from pipeline.plan.plan import plan_set
    from shards.stores.files import check_room
    from shards.stores.open import scheme_of

    recipe = load_recipe(options.recipe, overrides=options.overrides, progress=True)
    found = plan_set(
        recipe,
        workers=options.workers,
        gpu_usd_per_hour=options.gpu_usd_per_hour,
        node_usd_per_hour=options.node_usd_per_hour,
        cpus_per_node=options.cpus_per_node,
        network=read_network(options),
        progress=True,
    )
    out = options.out or ""
    # Disk of folders is checked as the build checks it; an object store has no limit.
    folders = [None if scheme_of(place) else Path(place) for place in (options.work or out, out)]
    problems = [found.refusal] if found.refusal else []
    try:
        check_room(found.disk_needs(*folders), REMEDY)
    except InputError as error:
        problems += map(str, error.problems)
    if options.json:
        print(json.dumps(asdict(found) | {"problems": problems}, indent=2))
    else:
        print_plan(recipe, found)
    for problem in problems:
        say(f"error: {problem}")
    return COULD_NOT_RUN if problems else WHOLE
