"""`trace --where`: the documents that have carried values, and a block list of them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shards.cli.trace_out import print_trace_out, write_trace_out
from shards.errors import plural
from shards.terminal.display import describe_shown, print_json, print_rows, printable, show_values
from shards.terminal.exit_status import WHOLE

if TYPE_CHECKING:
    from shards.trace.find_carried import CarriedHits
    from shards.trace.locate import Place


def show_where(options: argparse.Namespace) -> int:
    """Print the documents for which all conditions hold; return the exit status."""
    from shards.format.reader import open_set
    from shards.terminal.progress import show_progress
    from shards.trace.block_list import check_block_list_unused
    from shards.trace.find_carried import find_carried, parse_conditions

    shard_set = open_set(options.set)
    conditions = parse_conditions(options.where, shard_set)
    if options.out is not None:
        check_block_list_unused(options.out, shard_set)
    with show_progress("trace", unit="documents") as progress:
        found = find_carried(
            shard_set, conditions, limit=options.limit or None, workers=options.workers, progress=progress
        )
    written = write_trace_out(options, found, shard_set)
    if options.json:
        print_json(found.to_dict() | written)
    else:
        _print(found, describe_shown(len(found.shown), found.documents))
        print_trace_out(written)
    return WHOLE


def _print(found: CarriedHits, shown: str) -> None:
    for place in found.shown:
        print(printable(_describe(place)))
    print_rows([{"source": name, "documents": number} for name, number in found.sources.items()])
    print(f"{found.documents:,} {'document has' if found.documents == 1 else 'documents have'} it{shown}")


def _describe(place: Place) -> str:
    """Return a line that says where a document is, and its carried values."""
    origin = f"source {place.source}, unit {place.unit}, row {place.row}, hash {place.hash}"
    values = show_values(place.carried)
    return f"# {place.shard} document {place.document}, {plural(place.tokens, 'token')}: {values}; {origin}"
