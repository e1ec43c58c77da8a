"""Fetch a set from the Hugging Face Hub into a new folder, every file verified against the manifest.

If it is stopped, run the same command again to resume; a folder that already holds the set is verified again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import plural
from shards.terminal.arguments import add_give_up_after, add_new_folder
from shards.terminal.program import Outcome

if TYPE_CHECKING:
    from shards.hub.pull import Pulled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pull`."""
    parser.add_argument("source", metavar="SOURCE", help="OWNER/NAME[@REVISION][/FOLDER], or hf://datasets/...")
    add_new_folder(parser)
    add_give_up_after(parser)
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit (default: main)")


def run(options: argparse.Namespace) -> Outcome:
    """Return what was fetched."""
    from shards.hub.pull import pull
    from shards.stores.address import parse_hub_address
    from shards.stores.hub_client import limit_hub_requests, quiet_hub_client
    from shards.terminal.progress import show_progress

    began = time.perf_counter()
    address = parse_hub_address(options.source, revision=options.revision)
    quiet_hub_client()
    limit_hub_requests(options.give_up_after)
    with show_progress("pull", unit="bytes") as progress:
        done = pull(address, options.out, give_up_s=options.give_up_after, progress=progress)
    seconds = time.perf_counter() - began
    data = {
        "url": str(address),
        "commit": done.commit,
        "out": str(options.out),
        "files": done.files,
        "bytes": done.bytes,
        "was_there": done.was_there,
        "seconds": round(seconds, 3),
    }
    return Outcome(data, [_describe(done, options.out, seconds)])


def _describe(done: Pulled, out: Path, seconds: float) -> str:
    files = f"{plural(done.files, 'file')}, {done.bytes:,} bytes, each verified against the manifest"
    if done.was_there:
        return f"{out}: nothing to do: it holds this set, {files}; commit {done.commit}"
    return f"{out}: {files}, {seconds:.1f} s; commit {done.commit}"
