"""The command line of the pipeline: `python -m pipeline build | plan | demo-corpus | keys`."""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from pipeline.cli.flags import add_network, add_recipe, export_network, set_folder
from shards.terminal.arguments import add_workers, number_in
from shards.terminal.command import run_command
from shards.terminal.program import add_version, called_as

EPILOG = """\
examples:
  %(prog)s plan  recipes/data/demo.toml
  %(prog)s build recipes/data/demo.toml --out out/demo
  %(prog)s build recipes/data/demo.toml --out out/demo --tokens 2M --workers 4
exit codes: 0 done, 1 failed on the way or the set has problems, 2 could not run (recipe, data, machine),
            130 interrupted, 141 nobody read the output to its end (| head)
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit code."""
    options = _parser().parse_args(arguments)
    interrupted = "interrupted; what is finished is kept. Run the same command again to go on."
    as_json = getattr(options, "json", False)
    return run_command(lambda: options.run(options), as_json=as_json, interrupted=interrupted)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=called_as("pipeline"),
        description="From a recipe to a shard set: exact token mixes, byte-identical however it is run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="build a shard set", description="Build a shard set from a recipe.")
    add_recipe(build)
    build.add_argument("--out", type=set_folder, required=True, metavar="DIR", help="folder of the shard set")
    build.add_argument("--work", type=Path, metavar="DIR", help="scratch and receipts (default: OUT.work, beside OUT)")
    add_workers(build)
    build.add_argument(
        "--engine",
        choices=["local", "datatrove"],
        default="local",
        help="processes of this machine (default), or ranks of datatrove's local executor",
    )
    build.add_argument("--validate", choices=["quick", "full"], default="full", help="how the finished set is checked")
    build.add_argument("--json", action="store_true", help="print the result as JSON")
    add_network(build)
    build.set_defaults(run=_build)

    plan = commands.add_parser(
        "plan",
        help="say what a recipe reads, writes and needs",
        description="Price a build from the files' footers and a probe: a sample of every source, a few megabytes, "
        "that goes through the build's own steps. Writes nothing.",
    )
    add_recipe(plan)
    plan.add_argument("--no-probe", action="store_true", help="footers only: no text is read, tokens are a guess")
    add_workers(plan)
    plan.add_argument(
        "--gpu-usd-per-hour",
        type=number_in(0, 10**6),
        metavar="USD",
        help="say what a GPU costs that waits for the build",
    )
    plan.add_argument("--out", type=Path, metavar="DIR", help="check the disk of this folder (default: here)")
    plan.add_argument("--work", type=Path, metavar="DIR", help="check the disk of this scratch folder too")
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_network(plan)
    plan.set_defaults(run=_plan)

    demo = commands.add_parser(
        "demo-corpus",
        help="gather a small real corpus from this installation",
        description="Write three parquet sources of real text that every installation carries: prose, maths, code.",
    )
    demo.add_argument("folder", type=Path, metavar="DIR", help="where to write them")
    demo.add_argument("--json", action="store_true", help="print the sources as JSON")
    demo.set_defaults(run=_demo_corpus)

    keys = commands.add_parser(
        "keys",
        help="list every key of a data recipe",
        description="Print the tables of a data recipe's keys as Markdown, from its schema.",
    )
    keys.add_argument("--into", type=Path, metavar="FILE", help="put them between the markers of this file instead")
    keys.set_defaults(run=_keys)
    return parser


def _build(options: argparse.Namespace) -> int:
    gc.disable()  # what the imports make stays; looking through it for garbage takes 0.1 s
    work = options.work or options.out.with_name(options.out.name + ".work")
    export_network(options, work / "cache")
    from pipeline.engine.executors import DatatroveExecutor, LocalExecutor

    # Made first: its fork server loads the libraries while this process does.
    with closing((LocalExecutor if options.engine == "local" else DatatroveExecutor)(options.workers)) as executor:
        from pipeline.build.build import build
        from pipeline.cli import display
        from pipeline.engine.progress import Progress
        from pipeline.recipe.schema import load_recipe

        gc.freeze()
        gc.enable()
        report = build(
            load_recipe(options.recipe, overrides=options.overrides),
            out=options.out,
            work=work,
            executor=executor,
            progress=Progress(),
            level=options.validate,
        )
    if options.json:
        print(json.dumps(display.build_json(report, options.out, work), indent=2))
    else:
        display.print_build(report, options.out, work)
    return 1 if report.validation.problems else 0


def _plan(options: argparse.Namespace) -> int:
    from pipeline.cli import display
    from pipeline.estimate import estimate as plan
    from pipeline.estimate.disk import check_disk
    from pipeline.estimate.pilot import measure
    from pipeline.recipe.schema import load_recipe
    from pipeline.sources.hub import pin_revisions
    from pipeline.sources.selection import open_sources

    with tempfile.TemporaryDirectory(prefix="tokenmill-plan-") as cache:  # footers are looked at more than once
        export_network(options, Path(cache))
        recipe = pin_revisions(load_recipe(options.recipe, overrides=options.overrides))
        selections = open_sources(recipe)
        probe = None if options.no_probe else measure(recipe, selections)
        estimate = plan.estimate(
            recipe, selections, probe=probe, workers=options.workers, gpu_usd_per_hour=options.gpu_usd_per_hour
        )
    if options.json:
        print(json.dumps(estimate.to_dict(), indent=2))
    else:
        display.print_plan(recipe, estimate)
    out = options.out or Path()
    check_disk(estimate.disk_needs(options.work or out, out))
    return 0


def _demo_corpus(options: argparse.Namespace) -> int:
    from pipeline.demo.corpus import write_demo_corpus
    from shards.terminal.display import print_rows

    rows = write_demo_corpus(options.folder)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print_rows(rows, title="demo corpus")
    return 0


def _keys(options: argparse.Namespace) -> int:
    from pipeline.recipe.reference import to_markdown, write_into

    if options.into is None:
        print(to_markdown())
    else:
        changed = write_into(options.into)
        print(f"{options.into}: {'updated' if changed else 'up to date'}")
    return 0


def run_process(arguments: list[str]) -> NoReturn:
    """Run the command line of this process and end it."""
    signal.signal(signal.SIGTERM, _interrupt)
    exit_code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # all is written; sys.exit would wait 0.2 s for the fork server to unload its libraries


if __name__ == "__main__":
    run_process(sys.argv[1:])
