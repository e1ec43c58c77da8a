"""`trace --hash` and `--document`: where a document is in the set; if it is not, why, from the build's work folder."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.errors import InputError
from shards.terminal.program import Outcome

if TYPE_CHECKING:
    from shards.format.reader import ShardSet
    from shards.trace.explain_entry_point import Answer

MOST_TEXT_BYTES = 1 << 30
"""A larger file is no document's text."""


def find_document(options: argparse.Namespace) -> Outcome:
    """Return where the document is, or why it is not in the set."""
    from shards.format.content_hash import hash_document
    from shards.format.reader import open_set
    from shards.trace.find_hash import DIGITS, check_unique, describe_found_hash, find_hash, parse_hash

    text = None if options.document is None else _read_text(options.document)
    digits = parse_hash(options.hash) if text is None else hash_document(text).hex()
    shard_set = open_set(options.set)
    places = find_hash(shard_set, digits, workers=options.workers)
    hashes = {place.hash for place in places}
    check_unique(digits, hashes)
    answer, told = None, list[str]()
    # A work folder is asked about a document that the set lacks, and about any other if it is given.
    if not places or options.work is not None:
        answer, missing = _ask(options, shard_set, digits, text)
        if answer is not None:
            hashes |= answer.hashes
            check_unique(digits, hashes)
        told = [missing] if answer is None and not places else answer.lines if answer else []
    found = next(iter(hashes), digits if len(digits) == DIGITS else None)
    shown = [describe_found_hash(shard_set, place) for place in places]
    data = {"query": digits, "hash": found, "in_set": bool(places), "places": shown}
    return Outcome(data | {"build": answer.data if answer else None}, _show(shown, found or digits, told))


def _read_text(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MOST_TEXT_BYTES:
            raise InputError(
                f"--document {path}: {size:,} bytes; expected a document's text. Give a file with it alone."
            )
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"--document {path}: {error.strerror}. Give a file that holds the document's text.") from error


def _ask(
    options: argparse.Namespace, shard_set: ShardSet, digits: str, text: bytes | None
) -> tuple[Answer | None, str]:
    """Return what the build's work folder says; or None, and what a person can do about it."""
    from shards.terminal.progress import show_progress
    from shards.trace.explain_entry_point import Question, load_explain
    from shards.trace.find_hash import hash_bounds

    explain = load_explain()
    if explain is None:
        if options.work is not None:
            raise InputError("--work: nothing installed reads work folders. Install the package that built the set.")
        return None, "The package that built the set can say why: install it, and give --work."
    question = Question(
        str(options.set), shard_set.manifest_sha256, hash_bounds(digits), options.work, text, options.read_sources
    )
    with show_progress("trace", unit="bytes", show=options.read_sources) as progress:
        answer = explain(question, progress)
    return answer, "The build's work folder can say why: give it with --work. By default it is SET.work."


def _show(places: list[dict[str, Any]], wanted: str, told: list[str]) -> Iterator[str]:
    """Yield the places of a document, and what the work folder tells."""
    for place in places:
        tokens = f"tokens [{place['start']:,}, {place['start'] + place['tokens']:,})"
        origin = f"source {place['source']}, file {place['file']}, unit {place['unit']}, row {place['row']}"
        where = f"{place['shard']} document {place['document']} ({place['split']})"
        yield f"# {where}, {tokens}: {origin}, hash {place['hash']}"
    if not places:
        yield f"not in the set: {wanted}"
    yield from told
