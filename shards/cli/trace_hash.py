"""`trace --hash` and `--document`: where a document is in the set; if it is not, why, from the build's work folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.errors import InputError
from shards.terminal.display import print_json, print_lines, show_values
from shards.terminal.exit_status import WHOLE

if TYPE_CHECKING:
    from shards.format.reader import ShardSet
    from shards.trace.explain_entry_point import Answer
    from shards.trace.find_hash import HashQuery

MOST_TEXT_BYTES = 1 << 30
"""A larger file is no document's text."""


def show_hash(options: argparse.Namespace) -> int:
    """Print where the document is, or why it is not in the set; return the exit status."""
    from shards.format.reader import open_set
    from shards.trace.find_hash import check_unique, describe_found_hash, find_hash

    query, text = _query(options)
    shard_set = open_set(options.set)
    places = find_hash(shard_set, query, workers=options.workers)
    hashes = {place.hash for place in places}
    check_unique(query, hashes)
    answer, missing = None, ""
    if not places or options.work is not None:
        answer, missing = _ask(options, shard_set, query, text)
        check_unique(query, hashes | set(answer.hashes if answer else ()))
    found = next(iter(hashes | set(answer.hashes if answer else ())), query.digits if query.is_whole else None)
    shown = [describe_found_hash(shard_set, place) for place in places]
    if options.json:
        explained = answer.data if answer else None
        print_json({"query": query.digits, "hash": found, "in_set": bool(places), "places": shown, "build": explained})
        return WHOLE
    lines = [_describe(place) for place in shown] or [f"not in the set: {found or query.digits}"]
    print_lines([*lines, *(answer.lines if answer and (not places or options.work is not None) else [])])
    if answer is None and not places:
        print_lines([missing])
    return WHOLE


def _query(options: argparse.Namespace) -> tuple[HashQuery, bytes | None]:
    from shards.format.content_hash import hash_document
    from shards.trace.find_hash import HashQuery, parse_hash

    if options.hash is not None:
        return parse_hash(options.hash), None
    path: Path = options.document
    try:
        size = path.stat().st_size
        if size > MOST_TEXT_BYTES:
            raise InputError(
                f"--document {path}: {size:,} bytes; expected a document's text. Give a file with it alone."
            )
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"--document {path}: {error.strerror}. Give a file that holds the document's text.") from error
    return HashQuery(hash_document(text).hex()), text


def _ask(
    options: argparse.Namespace, shard_set: ShardSet, query: HashQuery, text: bytes | None
) -> tuple[Answer | None, str]:
    """Return what the build's work folder says; or None, and what a person can do about it."""
    from shards.terminal.progress import show_progress
    from shards.trace.explain_entry_point import Question, load_explain_entry_point

    explain = load_explain_entry_point()
    if explain is None:
        if options.work is not None:
            raise InputError("--work: nothing installed reads work folders. Install the package that built the set.")
        return None, "The package that built the set can say why: install it, and give --work."
    question = Question(
        str(options.set), shard_set.manifest_sha256, query.bounds, options.work, text, options.read_sources
    )
    with show_progress("trace", unit="bytes", show=options.read_sources) as progress:
        answer = explain(question, progress)
    return answer, "The build's work folder can say why: give it with --work. By default it is SET.work."


def _describe(place: dict[str, Any]) -> str:
    tokens = f"tokens [{place['start']:,}, {place['start'] + place['tokens']:,})"
    origin = f"source {place['source']}, file {place['file']}, unit {place['unit']}, row {place['row']}"
    if place.get("carried"):
        origin = f"{origin}, {show_values(place['carried'])}"
    return (
        f"# {place['shard']} document {place['document']} ({place['split']}), {tokens}: {origin}, hash {place['hash']}"
    )
