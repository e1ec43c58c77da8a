"""Write the same tokens and document boundaries in the layout that another loader reads."""

import argparse
import time

from shards.convert.layouts import LAYOUTS
from shards.errors import plural
from shards.terminal.arguments import add_new_folder, add_set
from shards.terminal.program import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    add_set(parser)
    parser.add_argument("--to", choices=LAYOUTS, required=True, help="the layout to write")
    add_new_folder(parser)
    parser.add_argument(
        "--split", choices=("train", "val", "all"), default="all", help="splits to write (default: all)"
    )


def run(options: argparse.Namespace) -> Outcome:
    """Return what `export` has written."""
    from shards.convert.export import export_set
    from shards.format.reader import open_set
    from shards.terminal.display import say
    from shards.terminal.progress import show_progress

    began, shard_set = time.perf_counter(), open_set(options.set)
    with show_progress("export") as progress:
        found = export_set(
            shard_set,
            options.out,
            layout=options.to,
            splits=None if options.split == "all" else (options.split,),
            progress=progress,
        )
    seconds = time.perf_counter() - began
    if shard_set.manifest.chat is not None and options.to != "parquet":
        say(f"{options.to} has no labels: who trains on it trains on every token. `--to parquet` has them.")
    shown = [
        f"{split}: {plural(counts['tokens'], 'token')} in {plural(counts['documents'], 'document')}"
        for split, counts in found["splits"].items()
    ]
    # The export's own size: what a copy of it would take.
    files = f"{plural(len(found['files']), 'file')}, {found['bytes']:,} bytes, {seconds:.1f} s"
    shown += [f"{found['out']}: {found['layout']}, {files}", f"load it with {found['usage']}"]
    return Outcome(found | {"seconds": round(seconds, 3)}, shown)
