"""`python -m shards export`: a set in the layout of another loader; see `shards.convert.layouts`."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from shards.convert.layouts import LAYOUTS
from shards.errors import plural
from shards.terminal.arguments import add_set, check_place, parse_path
from shards.terminal.display import print_json
from shards.terminal.exit_status import WHOLE

if TYPE_CHECKING:
    from shards.terminal.arguments import Subparsers


def add_command(commands: Subparsers) -> None:
    """Add `export`."""
    parser = commands.add_parser(
        "export",
        help="write a set in the layout that another loader reads",
        description="Write the same tokens and document boundaries in the layout that another loader reads.",
    )
    add_set(parser)
    parser.add_argument("--to", choices=LAYOUTS, required=True, help="the layout to write")
    parser.add_argument(
        "--out",
        type=parse_path,
        required=True,
        metavar="OUT",
        help="a new folder; it appears when everything is written",
    )
    parser.add_argument(
        "--split", choices=("train", "val", "all"), default="all", help="splits to write (default: all)"
    )
    parser.add_argument(
        "--verify", action="store_true", help="read the export back and compare every byte with the set"
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from shards.convert.export import export_set
    from shards.format.reader import open_set
    from shards.terminal.display import printable
    from shards.terminal.progress import show_progress

    check_place(options.set)
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
    seconds, size = time.perf_counter() - began, sum(found.files.values())
    if options.json:
        head = {"layout": found.layout, "out": str(found.path), "splits": found.splits, "verified": found.verified}
        print_json({**head, "usage": found.usage, "bytes": size, "files": found.files, "seconds": round(seconds, 3)})
        return WHOLE
    for split, counts in found.splits.items():
        print(f"{split}: {plural(counts['tokens'], 'token')} in {plural(counts['documents'], 'document')}")
    verified = ", every token and boundary read back and compared" if found.verified else ""
    speed = f"{size / max(seconds, 1e-9) / 1e6:.0f} MB/s"
    print(
        printable(
            f"{found.path}: {found.layout}, {plural(len(found.files), 'file')}, {size:,} bytes, {speed}{verified}"
        )
    )
    print(printable(f"load it with {found.usage}"))
    return WHOLE
