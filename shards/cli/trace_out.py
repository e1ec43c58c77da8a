"""`trace --out`: the block list of the documents found."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from shards.errors import plural
from shards.terminal.display import printable

if TYPE_CHECKING:
    from shards.format.reader import ShardSet
    from shards.trace.block_list import FoundDocuments


def write_trace_out(options: argparse.Namespace, found: FoundDocuments, shard_set: ShardSet) -> dict[str, Any]:
    """Write the block list that `trace --out` asks for, if any; return its entry for `--json`."""
    from shards.trace.block_list import write_block_list

    if options.out is None:
        return {}
    return {"out": str(options.out), "hashes": write_block_list(options.out, found, shard_set)}


def print_trace_out(written: dict[str, Any]) -> None:
    """Print which block list `trace --out` wrote, if it wrote one."""
    if written:
        print(f"block list: {printable(written['out'])}, {plural(written['hashes'], 'hash')}")
