"""`python -m shards pull`: a set from the Hugging Face Hub; see `shards.hub.pull`."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from shards.errors import plural
from shards.terminal.arguments import add_give_up_after, parse_path
from shards.terminal.display import print_json
from shards.terminal.exit_status import WHOLE

if TYPE_CHECKING:
    from shards.terminal.arguments import Subparsers


def add_command(commands: Subparsers) -> None:
    """Add `pull`."""
    parser = commands.add_parser(
        "pull",
        help="fetch a set from the Hugging Face Hub, every file verified; run it again to resume",
        description="Fetch a set from the Hugging Face Hub into a new folder, every file verified against the "
        "manifest. If it is stopped, run the same command again to resume; a folder that already holds the set is "
        "verified again.",
    )
    parser.add_argument("source", metavar="SOURCE", help="OWNER/NAME[@REVISION][/FOLDER], or hf://datasets/...")
    parser.add_argument(
        "--out",
        type=parse_path,
        required=True,
        metavar="DIR",
        help="a new folder; it appears when everything is written",
    )
    add_give_up_after(parser)
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit (default: main)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from shards.hub.pull import pull
    from shards.stores.hub_address import parse_hub_address
    from shards.stores.hub_client import limit_hub_requests, quiet_hub_client
    from shards.terminal.display import printable
    from shards.terminal.progress import show_progress

    began = time.perf_counter()
    address = parse_hub_address(options.source, revision=options.revision)
    quiet_hub_client()
    limit_hub_requests(options.give_up_after)
    with show_progress("pull", unit="bytes") as progress:
        done = pull(address, options.out, give_up_s=options.give_up_after, progress=progress, note=_note)
    seconds = time.perf_counter() - began
    if options.json:
        print_json(
            {
                "url": str(address),
                "commit": done.commit,
                "out": str(options.out),
                "files": len(done.names),
                "bytes": done.bytes,
                "fetched_bytes": done.fetched_bytes,
                "refetched": done.refetched,
                "was_there": done.was_there,
                "seconds": round(seconds, 3),
            }
        )
        return WHOLE
    for name in done.refetched:
        print(printable(f"{name}: fetched twice: its bytes were wrong at first"))
    if done.was_there:
        files = f"{plural(len(done.names), 'file')}, {done.bytes:,} bytes, each verified"
        print(
            printable(f"{options.out}: nothing to do: it holds this set, {files}, each verified; commit {done.commit}")
        )
        return WHOLE
    speed = f"{done.fetched_bytes / max(seconds, 1e-9) / 1e6:.0f} MB/s"
    print(
        printable(
            f"{options.out}: {plural(len(done.names), 'file')}, {done.bytes:,} bytes, each verified against the "
            f"manifest; {done.fetched_bytes:,} bytes fetched, {speed}; commit {done.commit}"
        )
    )
    return WHOLE


def _note(text: str) -> None:
    from shards.terminal.display import say

    say(f"pull: {text}")
