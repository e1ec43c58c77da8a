"""`python -m shards trace`: from a token, a string, a place, a content hash or carried values to documents.

Every name and text is printed through `display.printable`: a document cannot control the terminal.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from shards.cli.trace_out import print_trace_out, write_trace_out
from shards.errors import InputError, plural
from shards.terminal.arguments import add_set, add_workers, check_place, parse_path, whole_number
from shards.terminal.display import describe_shown, print_json, print_rows, printable, show_values
from shards.terminal.exit_status import WHOLE

if TYPE_CHECKING:
    from shards.terminal.arguments import Subparsers
    from shards.trace.excerpt import Excerpt
    from shards.trace.locate import Place
    from shards.trace.search import Hit, Query
    from shards.trace.trace import Trace


def add_command(commands: Subparsers) -> None:
    """Add `trace`."""
    parser = commands.add_parser(
        "trace",
        help="find the documents that contain a token, a text or a pattern, or say why one is not in the set",
        description="Find the documents that contain a token, a text or a pattern, with their source, unit, row and "
        "the text around it; or those with a carried value, such as a URL; or the document with a content hash. If "
        "the set does not have that document, the build's work folder says why. The exit status is 0 whether or not "
        "anything is found. --regex takes patterns of Python's re, in which \\b and \\w match Unicode; in a data "
        "recipe's drop_if_matches (RE2) they match ASCII only, and look-around is not supported. Begin a pattern with "
        "(?a) to get RE2's \\b and \\w.",
    )
    add_set(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--token", type=whole_number, metavar="ID", help="an id of the vocabulary")
    what.add_argument("--text", metavar="STRING", help="exact text, however it was cut into tokens")
    what.add_argument(
        "--regex", metavar="PATTERN", help="a regular expression (Python's re), searched in each document's text"
    )
    what.add_argument(
        "--shard", metavar="K", help="a shard's name, or its index in the manifest, from 0; needs --offset"
    )
    what.add_argument(
        "--hash",
        metavar="HASH",
        help="a document's content hash (XXH3-128 of its text), or at least its first 8 digits",
    )
    what.add_argument(
        "--document", type=parse_path, metavar="FILE", help="a file with a document's exact text, instead of its hash"
    )
    what.add_argument(
        "--where",
        action="append",
        metavar="CONDITION",
        help="a carried value: url=VALUE, url^=BEGINNING or url~=PATTERN (RE2); if repeated, all must hold",
    )
    parser.add_argument("--offset", type=whole_number, metavar="N", help="index of a token in that shard, from 0")
    parser.add_argument(
        "--limit", type=whole_number, default=20, metavar="N", help="documents to show; 0 for all (default: 20)"
    )
    parser.add_argument(
        "--out",
        type=parse_path,
        metavar="FILE",
        help="write the documents' hashes as a block list, for a data recipe's drop_hashes",
    )
    parser.add_argument(
        "--work",
        metavar="DIR",
        help="with --hash or --document: the build's work folder or its address (default: SET.work, if it is there)",
    )
    parser.add_argument(
        "--read-sources",
        action="store_true",
        help="with --hash or --document: search all sources again for a document that was not encoded",
    )
    add_workers(parser)
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with exact text; without it, control characters are escaped"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from shards.cli.problems import value_errors
    from shards.trace.block_list import check_block_list_path

    if (options.shard is None) != (options.offset is None):
        raise InputError("--shard and --offset go together. Give both, or neither.")
    by_hash = options.hash is not None or options.document is not None
    if options.out is not None and (options.shard is not None or by_hash):
        raise InputError("--out takes what a search finds, not a single place or document.")
    if (options.work is not None or options.read_sources) and not by_hash:
        raise InputError("--work and --read-sources go with --hash or --document.")
    check_place(options.set)
    with value_errors():
        if options.out is not None:
            check_block_list_path(options.out, options.set if isinstance(options.set, Path) else None)
        if options.shard is not None:
            return _show_place(options)
        if by_hash:
            from shards.cli.trace_hash import show_hash

            return show_hash(options)
        if options.where is not None:
            from shards.cli.trace_where import show_where

            return show_where(options)
        return _show_documents(options, _query(options))


def _query(options: argparse.Namespace) -> Query:
    from shards.trace.search import Query

    if options.token is not None:
        return Query("token", str(options.token))
    return Query("text", options.text) if options.text is not None else Query("regex", options.regex)


def _show_place(options: argparse.Namespace) -> int:
    from shards.cli.inspect_set import find_shard
    from shards.format.reader import open_set
    from shards.trace.trace import trace_token

    shard_set = open_set(options.set)
    hit = trace_token(shard_set, find_shard(shard_set, options.shard), options.offset)
    if options.json:
        print_json(hit.to_dict())
    else:
        print_hit(hit)
    return WHOLE


def _show_documents(options: argparse.Namespace, query: Query) -> int:
    from shards.format.reader import open_set
    from shards.terminal.progress import show_progress
    from shards.trace.block_list import check_block_list_unused
    from shards.trace.trace import trace

    if options.out is not None:
        check_block_list_unused(options.out, open_set(options.set))
    with show_progress("trace") as progress:
        found = trace(options.set, query, limit=options.limit or None, workers=options.workers, progress=progress)
    written = write_trace_out(options, found, open_set(options.set))
    if options.json:
        print_json(found.to_dict() | written)
    else:
        print_trace(found)
        print_trace_out(written)
    return WHOLE


def print_hit(hit: Hit) -> None:
    """Print one document: a line with its origin, and a line of text with the hit between >>> and <<<."""
    place = hit.place
    times = "" if hit.hits == 1 else f", {plural(hit.hits, 'time')}"
    print_place(place, f"token {hit.position} (of the shard {place.start + hit.position}){times}", hit.excerpt)


def print_trace(found: Trace) -> None:
    """Print the documents found, counts by source, and one line that sums up."""
    for hit in found.shown:
        print_hit(hit)
    print_rows([{"source": name, **asdict(counts)} for name, counts in found.sources.items()])
    hold = f"{plural(found.documents, 'document')} {'holds' if found.documents == 1 else 'hold'}"
    print(f"{hold} it, {plural(found.hits, 'time')}{describe_shown(len(found.shown), found.documents)}")


def print_place(place: Place, where: str, excerpt: Excerpt) -> None:
    """Print a document: a line that says where it is from, and a line of its text."""
    origin = f"source {place.source}, unit {place.unit}, row {place.row}, hash {place.hash}"
    if place.phase is not None:
        origin = f"phase {place.phase}, {origin}"
    if place.carried:
        origin = f"{origin}, {show_values(place.carried)}"
    print(printable(f"# {place.shard} document {place.document}, {where}: {origin}"))
    left_out = f" ({excerpt.left_out:,} bytes more)" if excerpt.left_out else ""
    print(f"  {printable(excerpt.before)}>>>{printable(excerpt.hit)}<<<{left_out}{printable(excerpt.after)}")
