"""`python -m shards inspect`: print a set's tables, or one document."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from shards.errors import InputError
from shards.terminal.arguments import add_set, check_place, print_json, whole_number
from shards.terminal.command import PROBLEMS, WHOLE

if TYPE_CHECKING:
    from shards.format.reader import Shard, ShardSet
    from shards.terminal.arguments import Subparsers


def add_command(commands: Subparsers) -> None:
    """Add `inspect`."""
    parser = commands.add_parser(
        "inspect",
        help="print a set's tables, or one document",
        description="Print a set's tables, or one document and its origin.",
    )
    add_set(parser)
    parser.add_argument("--shard", metavar="K", help="a shard's name, or its index in the manifest, from 0")
    parser.add_argument("--document", type=whole_number, metavar="J", help="index of a document in that shard, from 0")
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with exact text; without it, control characters are escaped"
    )
    parser.set_defaults(run=_run)


def find_shard(shard_set: ShardSet, name: str, *, command: str) -> Shard:
    """Find a shard by name, or by its place in the manifest.

    Raises:
        InputError: there is no such shard; the message begins with the command's name.
    """
    if name.isascii() and name.isdigit():
        index = int(name)
        if index < len(shard_set.shards):
            return shard_set.shards[index]
        raise InputError(f"{command}: no shard {index}; the set has {len(shard_set.shards)}, counted from 0.")
    try:
        return shard_set.shard(name)
    except KeyError as error:
        raise InputError(f"{command}: {error.args[0]}") from error


def _run(options: argparse.Namespace) -> int:
    from shards.cli.sets import describe_set, print_document, print_set, print_set_problems
    from shards.errors import ShardSetError
    from shards.format.reader import open_set

    if (options.shard is None) != (options.document is None):
        raise InputError("inspect: --shard and --document go together. Give both, or neither.")
    check_place(options.set)
    try:
        shard_set = open_set(options.set)
        if options.shard is None:
            if options.json:
                print_json(describe_set(shard_set))
            else:
                print_set(shard_set)
            return WHOLE
        document = _find_document(shard_set, find_shard(shard_set, options.shard, command="inspect"), options.document)
    except ShardSetError as error:
        print_set_problems(error.problems, as_json=options.json)
        return PROBLEMS
    if options.json:
        print_json(document)
    else:
        print_document(document)
    return WHOLE


def _find_document(shard_set: ShardSet, shard: Shard, number: int) -> dict[str, Any]:
    """Return a document's text and provenance."""
    from shards.errors import ShardSetError
    from shards.format.documents import read_document

    if not 0 <= number < shard.num_documents:
        raise InputError(
            f"inspect: no document {number} in {shard.name}; it has {shard.num_documents}, counted from 0."
        )
    try:
        return read_document(shard_set, shard, number)
    except ShardSetError:
        raise
    except ValueError as error:
        raise InputError(f"inspect: {error}") from error
