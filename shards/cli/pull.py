"""Fetch a set from the Hugging Face Hub into a new folder, and verify every file against the manifest.

If it is stopped, run the same command again to resume; a folder that already holds the set is verified again.
"""

import argparse
import time

from shards.errors import plural
from shards.terminal.arguments import add_give_up_after, add_new_folder
from shards.terminal.program import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pull`."""
    parser.add_argument("source", metavar="SOURCE", help="OWNER/NAME[@REVISION][/FOLDER]: a branch, tag or commit")
    add_new_folder(parser)
    add_give_up_after(parser)


def run(options: argparse.Namespace) -> Outcome:
    """Return what `pull` has fetched."""
    from shards.hub.pull import pull
    from shards.stores.hub_client import limit_hub_requests
    from shards.stores.hub_store import parse_hub_address
    from shards.terminal.progress import show_progress

    began = time.perf_counter()
    address = parse_hub_address(options.source)
    limit_hub_requests(options.give_up_after)
    with show_progress("pull", unit="bytes") as progress:
        done = pull(address, options.out, progress=progress)
    seconds = time.perf_counter() - began
    data = {"url": str(address), "out": str(options.out), **done, "seconds": round(seconds, 3)}
    files = f"{plural(done['files'], 'file')}, {done['bytes']:,} bytes, each verified against the manifest"
    told = f"nothing to do: it holds this set, {files}" if done["was_there"] else f"{files}, {seconds:.1f} s"
    return Outcome(data, [f"{options.out}: {told}; commit {done['commit']}"])
