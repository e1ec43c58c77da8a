"""The command line of the pipeline: `python -m pipeline build | plan | demo-corpus | keys`."""

from __future__ import annotations

import argparse
import errno
import gc
import json
import os
import signal
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

EPILOG = """\
examples:
  python -m pipeline plan  recipes/data/demo.toml
  python -m pipeline build recipes/data/demo.toml --out out/demo
  python -m pipeline build recipes/data/demo.toml --out out/demo --tokens 2M --workers 4
exit codes: 0 done, 1 failed on the way or the set has problems, 2 could not run (recipe, data, machine)
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit code."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return options.run(options)
    except KeyboardInterrupt:
        print("interrupted; what is finished is kept. Run the same command again to go on.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "The disk is full. Free some space and run the same command again: it goes on where it stopped."
        print(f"error: {error}\n{remedy if full else ''}".rstrip(), file=sys.stderr)
        return 1 if full else 2
    except (ValueError, RuntimeError) as error:
        # Our own errors say what to do; any other is a fault of ours and shows its trace.
        if not type(error).__module__.startswith(("pipeline.", "shards.")):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1 if type(error).__name__ in ("EncodeError", "WorkerLostError") else 2


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline",
        description="From a recipe to a shard set: exact token mixes, byte-identical however it is run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="build a shard set", description="Build a shard set from a recipe.")
    _add_recipe(build)
    build.add_argument("--out", type=_set_folder, required=True, metavar="DIR", help="folder of the shard set")
    build.add_argument("--work", type=Path, metavar="DIR", help="scratch and receipts (default: OUT.work, beside OUT)")
    build.add_argument(
        "--workers", type=_positive, default=os.cpu_count() or 1, metavar="N", help="processes (default: one a core)"
    )
    build.add_argument(
        "--engine",
        choices=["local", "datatrove"],
        default="local",
        help="processes of this machine (default), or ranks of datatrove's local executor",
    )
    build.add_argument("--validate", choices=["quick", "full"], default="full", help="how the finished set is checked")
    build.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_network(build)
    build.set_defaults(run=_build)

    plan = commands.add_parser(
        "plan",
        help="say what a recipe reads, writes and needs",
        description="Price a build from the files' footers and a probe: a sample of every source, a few megabytes, "
        "that goes through the build's own steps. Writes nothing.",
    )
    _add_recipe(plan)
    plan.add_argument("--no-probe", action="store_true", help="footers only: no text is read, tokens are a guess")
    plan.add_argument(
        "--workers", type=_positive, default=os.cpu_count() or 1, metavar="N", help="processes (default: one a core)"
    )
    plan.add_argument(
        "--gpu-usd-per-hour", type=_usd, metavar="USD", help="say what a GPU costs that waits for the build"
    )
    plan.add_argument("--out", type=Path, metavar="DIR", help="check the disk of this folder (default: here)")
    plan.add_argument("--work", type=Path, metavar="DIR", help="check the disk of this scratch folder too")
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    _add_network(plan)
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


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="a data recipe (TOML), or a set's recipe.json")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of the recipe, in TOML: --set mix.tokens=1_000_000 --set sources.NAME.weight=2",
    )
    parser.add_argument(
        "--tokens",
        type=_tokens,
        dest="overrides",
        action="append",
        metavar="N",
        help="training tokens: 1e9, 1B, 500M, 1_000_000_000 or max; only what they need of the sources is read",
    )


def _add_network(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reading over a network")
    group.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="keep all that is fetched there for other builds (default: only what is read twice, in the work folder)",
    )
    group.add_argument("--cache-limit", type=_size, metavar="SIZE", help="most bytes in the cache (default: 20 GB)")
    group.add_argument(
        "--timeout", type=_seconds, metavar="S", help="how long a server may be silent, in seconds (default: 30)"
    )
    group.add_argument(
        "--give-up-after", type=_seconds, metavar="S", help="how long a request is tried again (default: 600)"
    )
    group.add_argument(
        "--connections",
        type=_positive,
        metavar="N",
        help="connections of each worker (default: 16 for files on the Hub, 64 for Software Heritage's)",
    )
    group.add_argument(
        "--content-endpoint",
        metavar="URL",
        help="where Software Heritage's files are: https://HOST/PATH or s3://BUCKET/PREFIX (default: its bucket)",
    )


def _set_folder(text: str) -> Path:
    path = Path(text).absolute()
    if not path.name:
        raise argparse.ArgumentTypeError(f"{text} cannot be a set's folder: expected one with a name")
    return path


def _size(text: str) -> int:
    from pipeline.recipe import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text}")
    return value


def _tokens(text: str) -> str:
    from pipeline.recipe import parse_count

    if text != "max" and (not isinstance(parse_count(text), int) or parse_count(text) < 1):
        raise argparse.ArgumentTypeError(f"expected a number of tokens such as 1e9, 1B, 500M, or max; got {text!r}")
    return f'mix.tokens="{text}"'


def _usd(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"expected US dollars an hour, got {text}")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def _build(options: argparse.Namespace) -> int:
    gc.disable()  # what the imports make stays; looking through it for garbage takes 0.1 s
    work = options.work or options.out.with_name(options.out.name + ".work")
    _export_network(options, work / "cache")
    from pipeline.executor import DatatroveExecutor, LocalExecutor

    executor = (LocalExecutor if options.engine == "local" else DatatroveExecutor)(options.workers)
    from pipeline import display
    from pipeline.build import build
    from pipeline.progress import Progress
    from pipeline.recipe import load_recipe

    gc.freeze()
    gc.enable()
    recipe = load_recipe(options.recipe, overrides=options.overrides)
    with closing(executor):
        report = build(
            recipe,
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


def _export_network(options: argparse.Namespace, cache: Path | None = None) -> None:
    """Hand the flags about networks to this process and the workers; without --cache, use the given folder."""
    from dataclasses import replace

    from pipeline.sources.network import network

    settings = network()
    given = {
        "timeout_s": options.timeout,
        "give_up_s": options.give_up_after,
        "cache_bytes": options.cache_limit,
        "connections": options.connections,
        "content_connections": options.connections,
        "content_endpoint": options.content_endpoint,
    }
    if options.cache:
        given |= {"cache": str(options.cache.absolute()), "cache_all": True}
    elif cache and not settings.cache:
        given["cache"] = str(cache.absolute())
    replace(settings, **{name: value for name, value in given.items() if value is not None}).export()


def _plan(options: argparse.Namespace) -> int:
    from pipeline import display, plan
    from pipeline.disk import check_disk
    from pipeline.probe import measure
    from pipeline.recipe import load_recipe
    from pipeline.selection import open_sources
    from pipeline.sources.hub import pin_revisions

    with tempfile.TemporaryDirectory(prefix="tokenmill-plan-") as cache:  # footers are looked at more than once
        _export_network(options, Path(cache))
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
    from pipeline import display
    from pipeline.demo import write_demo_corpus

    rows = write_demo_corpus(options.folder)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        display.print_rows("demo corpus", rows)
    return 0


def _keys(options: argparse.Namespace) -> int:
    from pipeline.keys import to_markdown, write_into

    if options.into is None:
        print(to_markdown())
    else:
        changed = write_into(options.into)
        print(f"{options.into}: {'updated' if changed else 'up to date'}")
    return 0


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # all is written; sys.exit would wait 0.2 s for the fork server to unload its libraries
