"""Find the documents that contain a token, a text or a pattern, with their source, unit, row and the text around it;
or the document with a content hash.

If no document of the set has the hash, the build's work folder says why. The exit status is 0 whether or not anything
is found. With --json, text is exact; without it, control characters are escaped.

--regex takes patterns of Python's re, in which \\b and \\w match Unicode; in a data recipe's drop_if_matches (RE2) they
match ASCII only, and look-around is not supported. Begin a pattern with (?a) to get RE2's \\b and \\w. $ also matches
before a line end that ends the text; RE2's does not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.flags import add_allow_code
from shards.errors import InputError, plural, unread
from shards.terminal.arguments import add_found, add_set, add_workers, parse_path, whole_number
from shards.terminal.display import JsonObject, Table, describe_shown
from shards.terminal.program import Outcome, Shown

if TYPE_CHECKING:
    from shards.trace.search import Hit, QueryKind
    from shards.trace.trace import Trace

MOST_TEXT_BYTES = 1 << 30
"""A larger file is no document's text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trace`."""
    add_set(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--token", type=whole_number, metavar="ID", help="a token id")
    what.add_argument("--text", metavar="STRING", help="an exact string, whatever the token boundaries")
    what.add_argument(
        "--regex", metavar="PATTERN", help="a regular expression (Python's re), searched in each document's text"
    )
    what.add_argument(
        "--shard", metavar="K", help="a shard's name, or its index in the manifest, from 0; needs --offset"
    )
    what.add_argument(
        "--hash",
        metavar="HASH",
        help="a document's content hash (XXH3-128 of its text)",
    )
    what.add_argument(
        "--document",
        type=parse_path,
        metavar="FILE",
        help="a file with a document's exact text, or a conversation's messages in JSON, instead of its hash",
    )
    parser.add_argument("--offset", type=whole_number, metavar="N", help="index of a token in that shard, from 0")
    add_found(parser)
    parser.add_argument(
        "--work",
        metavar="DIR",
        help="with --hash or --document: the build's work folder or its address (default: SET.work, if it is there)",
    )
    add_allow_code(parser)
    add_workers(parser)


def run(options: argparse.Namespace) -> Outcome:
    """Return what `trace` finds: documents, the document at a place, or why one is not in the set."""
    # What argparse cannot say: flags that go together, and flags that do not.
    if (options.shard is None) != (options.offset is None):
        raise InputError("--shard and --offset go together. Give both, or neither.")
    by_hash = options.hash is not None or options.document is not None
    if options.out is not None and (options.shard is not None or by_hash):
        raise InputError("--out takes what a search finds, not a single place or document.")
    if options.work is not None and not by_hash:
        raise InputError("--work goes with --hash or --document.")
    if options.shard is not None:
        from shards.cli.inspect_set import find_shard
        from shards.format.reader import open_set
        from shards.trace.trace import trace_token

        shard_set = open_set(options.set)
        hit = trace_token(shard_set, find_shard(shard_set, options.shard), options.offset)
        return Outcome(hit.to_dict(), show_hit(hit))
    if by_hash:
        return _find_hash(options)
    return _find_documents(options)


def _find_documents(options: argparse.Namespace) -> Outcome:
    from shards.format.reader import open_set
    from shards.terminal.progress import show_progress
    from shards.trace.block_list import check_block_list, write_block_list
    from shards.trace.search import Query
    from shards.trace.trace import trace

    shard_set = open_set(options.set)
    # Everything about the command line is refused before the search, which may take hours.
    if options.out is not None:
        check_block_list(options.out, shard_set)
    with show_progress("trace") as progress:
        kinds: tuple[QueryKind, ...] = ("token", "text", "regex")
        kind: QueryKind = next(kind for kind in kinds if getattr(options, kind) is not None)
        query = Query(kind, str(getattr(options, kind)))
        found = trace(options.set, query, limit=options.limit, workers=options.workers, progress=progress)
    written: JsonObject = {}
    if options.out is not None:
        listed = write_block_list(options.out, found.hashes, shard_set, asked=found.asked)
        written = {"out": str(options.out), "hashes": listed}
    return Outcome(found.to_dict() | written, _show(found, written))


def _show(found: Trace, written: JsonObject) -> Shown:
    """Yield what `trace` prints: the documents found, counts by source, and one line that sums up."""
    # Documents first, so that counts and the sum are the last lines.
    for hit in found.shown:
        yield from show_hit(hit)
    yield [{"source": name, **counts} for name, counts in found.sources.items()]
    shown = describe_shown(len(found.shown), found.documents)
    yield f"{plural(found.documents, 'document')}, {plural(found.hits, 'hit')}{shown}"
    if written:
        yield f"block list: {written['out']}, {plural(written['hashes'], 'hash')}"


def show_hit(hit: Hit) -> Iterator[str]:
    """Yield what `trace` prints of a hit: the origin of its document, and the text with the hit between >>> and <<<."""
    place = hit.place
    times = "" if hit.hits == 1 else f", {plural(hit.hits, 'time')}"
    from shards.trace.locate import show_place

    return show_place(place, f"token {hit.position} (of the shard {place.start + hit.position}){times}", hit.excerpt)


def _find_hash(options: argparse.Namespace) -> Outcome:
    """Return for `trace --hash` where the document is, or why it is not in the set."""
    from pipeline.builder.explain import Question, explain
    from pipeline.sources.messages import read_messages
    from shards.format.content_hash import hash_document
    from shards.format.reader import open_set
    from shards.trace.trace import describe_found_hash, find_hash, parse_hash

    shard_set = open_set(options.set)
    text = None if options.document is None else _read_text(options.document)
    if text is not None and shard_set.manifest.chat is not None:
        text = read_messages(text).encode() or text
    digits = parse_hash(options.hash) if text is None else hash_document(text).hex()
    places = find_hash(shard_set, digits, workers=options.workers)
    lines, build = list[str](), None
    # A work folder is asked about a document that the set lacks, and about any other if it is given.
    if not places or options.work is not None:
        file = str(options.document or "")
        question = Question(
            str(options.set), shard_set.manifest_sha256, digits, options.work, text, file, options.allow_code
        )
        missing = "The build's work folder can say why: give it with --work. By default it is SET.work."
        lines, build = explain(question) or ([] if places else [missing], None)
    shown = [describe_found_hash(shard_set, place) for place in places]
    data = {"query": digits, "in_set": bool(places), "places": shown, "build": build}
    return Outcome(data, _show_places(shown, digits, lines, build))


def _read_text(path: Path) -> bytes:
    import pyarrow as pa

    from shards.stores.files import open_named

    text = bytearray()
    try:
        with open_named(path), pa.input_stream(str(path), compression="detect") as stream:
            while part := stream.read(1 << 20):
                text += part
                if len(text) > MOST_TEXT_BYTES:
                    raise OSError(f"more than {MOST_TEXT_BYTES:,} bytes of text")
        return bytes(text)
    except OSError as error:
        fault = unread(error, "Give a file that holds the document's text.")
        raise InputError(f"--document {path}: {fault}") from error


def _show_places(places: Table, wanted: str, told: list[str], build: JsonObject | None) -> Iterator[str]:
    """Yield what `trace --hash` prints: the places of a document, and what the work folder tells."""
    for place in places:
        yield (
            f"# {place['shard']} document {place['document']} ({place['split']}), tokens [{place['start']:,}, "
            f"{place['start'] + place['tokens']:,}): source {place['source']}, file {place['file']}, unit "
            f"{place['unit']}, row {place['row']}, hash {place['hash']}"
        )
    if not places and build and build["of_this_set"] and build["answer"] == "in the set":
        yield f"in the set, changed before encoding; this text has the hash {wanted}"
    elif not places:
        yield f"not in the set: {wanted}"
    yield from told
