"""Write the same tokens and document boundaries in the layout that another loader reads."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shards.convert.layouts import LAYOUTS
from shards.errors import plural
from shards.terminal.arguments import add_new_folder, add_set
from shards.terminal.program import Outcome

if TYPE_CHECKING:
    from shards.convert.export import Export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    add_set(parser)
    parser.add_argument("--to", choices=LAYOUTS, required=True, help="the layout to write")
    add_new_folder(parser)
    parser.add_argument(
        "--split", choices=("train", "val", "all"), default="all", help="splits to write (default: all)"
    )
    parser.add_argument(
        "--verify", action="store_true", help="read the export back and compare every byte with the set"
    )


def run(options: argparse.Namespace) -> Outcome:
    """Return what was written."""
    from shards.convert.export import export_set
    from shards.format.reader import open_set
    from shards.terminal.progress import show_progress

    began = time.perf_counter()
    with show_progress("export") as progress:
        found = export_set(
            open_set(options.set),
            options.out,
            layout=options.to,
            splits=None if options.split == "all" else (options.split,),
            verify=options.verify,
            progress=progress,
        )
    seconds = time.perf_counter() - began
    data = {
        "layout": found.layout,
        "out": str(found.path),
        "splits": found.splits,
        "verified": found.verified,
        "usage": found.usage,
        "bytes": sum(found.files.values()),
        "files": found.files,
        "seconds": round(seconds, 3),
    }
    return Outcome(data, _show(found, seconds))


def _show(found: Export, seconds: float) -> Iterator[str]:
    from shards.terminal.amounts import format_speed

    for split, counts in found.splits.items():
        yield f"{split}: {plural(counts['tokens'], 'token')} in {plural(counts['documents'], 'document')}"
    # The export's own size: what a copy of it would take.
    size = sum(found.files.values())
    verified = ", every byte read back and compared" if found.verified else ""
    files = f"{plural(len(found.files), 'file')}, {size:,} bytes, {format_speed(size, seconds, 'bytes')}"
    yield f"{found.path}: {found.layout}, {files}{verified}"
    yield f"load it with {found.usage}"
