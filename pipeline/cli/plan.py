"""Estimate what a build reads, writes, takes and costs. Writes nothing.

The estimate comes from the files' footers and a few megabytes of every source that go through the build's own steps.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pipeline.cli.flags import ENGINES, add_network, add_recipe, read_network
from shards.errors import InputError
from shards.terminal.arguments import number_in, positive_number
from shards.terminal.display import say
from shards.terminal.exit_status import COULD_NOT_RUN, WHOLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    add_recipe(parser)
    parser.add_argument(
        "--no-probe", action="store_true", help="read footers only, no text; token counts are then a guess"
    )
    parser.add_argument(
        "--count-duplicates",
        action="store_true",
        help="read and hash all text that the build would read, 20 bytes of memory per document; without it, documents "
        "with equal text are found in small local sources and in the sample",
    )
    parser.add_argument(
        "--out",
        metavar="PLACE",
        help="where the set will be, a folder or s3://BUCKET/PREFIX (or gs, az): check that it fits on the disk of the "
        "folder (default: the working directory)",
    )
    parser.add_argument("--work", metavar="PLACE", help="the same for the work folder (default: OUT.work)")
    machines = parser.add_argument_group("machines")
    machines.add_argument(
        "--engine",
        choices=ENGINES,
        default="local",
        help="where the tasks will run (default: local); the time until a cluster gives its nodes is not included",
    )
    machines.add_argument(
        "--workers",
        type=positive_number,
        metavar="N",
        help="tasks at once, over all machines (default: one per core of this machine; a cluster needs it)",
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
    from pipeline.builder.python_api import load_recipe, plan_set
    from pipeline.cli.plan_display import print_plan
    from pipeline.estimate.disk import REMEDY
    from shards.stores.files import check_room
    from shards.stores.open import scheme_of

    if options.no_probe and options.count_duplicates:
        raise InputError("plan: --no-probe reads no text and --count-duplicates reads all of it. Give one of them.")
    if options.engine != "local" and options.workers is None:
        raise InputError(f"plan: --engine {options.engine} needs --workers, the tasks that the cluster runs at once.")
    recipe = load_recipe(options.recipe, overrides=options.overrides, progress=True)
    found = plan_set(
        recipe,
        probe=not options.no_probe,
        duplicates="in all text" if options.count_duplicates else "cheaply",
        out=options.out,
        work=options.work,
        workers=options.workers,
        gpu_usd_per_hour=options.gpu_usd_per_hour,
        node_usd_per_hour=options.node_usd_per_hour,
        cpus_per_node=options.cpus_per_node,
        network=read_network(options),
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
        print(json.dumps(found.to_dict() | {"problems": problems}, indent=2))
    else:
        print_plan(recipe, found)
    for problem in problems:
        say(f"error: {problem}")
    return COULD_NOT_RUN if problems else WHOLE
