"""Compare sampled documents with their sources: read each again from the place in the document table, compare bytes.

`shards` itself has no code for sources. The entry point group `tokenmill.sources` provides a reader for each kind of
source, which is called as `read_documents(source, unit, rows)`; `source` is the source's object in recipe.json. The
sample is seeded and spread evenly over the set's documents, so that two runs compare the same ones. Costs one pass over
the document tables of the sampled shards, the frames with the documents, and the source's own time to find its rows.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from shards.errors import InputError, Problem, ShardSetError, load_entry_point, plural
from shards.format.content_hash import hash_document
from shards.format.document_table import read_bytes
from shards.format.listed_files import read_listed_file
from shards.format.reader import Shard, ShardSet
from shards.format.recipe_folder import RECIPE_FOLDER_FILE, find_recipe_folder
from shards.format.tokenizer_json import plain_json
from shards.trace.locate import Place, find_places

Encode = Callable[[str], list[int]]
"""Encodes a text as the set's documents are encoded."""

ENTRY_POINT_GROUP = "tokenmill.sources"
SAMPLE_SEED = 0x746D696C


ReadDocuments = Callable[[dict[str, Any], str, list[int]], list[bytes | None]]
"""A reader of one kind of source, found by entry point.

Its arguments are the source's object in recipe.json, with the `folder` added that its paths are relative to; the name
of a unit, as in the document table; and row numbers in the unit. It returns the text of each row as UTF-8 bytes, in the
order of the row numbers, and None for a row that does not exist. It raises ValueError or OSError, with a message for
the user, if the source cannot be read."""


def compare_with_sources(
    shard_set: ShardSet, shards: Sequence[Shard], count: int
) -> tuple[int, list[Problem], list[str]]:
    """Compare sampled documents with their sources, byte for byte.

    If the tokenizer rewrites text, the source's text is hashed and encoded again: hash and ids must equal the set's.

    Args:
        shard_set: the set.
        shards: shards whose files are sound; documents are sampled from these.
        count: how many documents to compare; all if the set has fewer.

    Returns:
        The number of documents compared, the problems, and why sources could not be read.
    """
    try:
        # Without these nothing can be compared; that is no problem of the set.
        encode = None if shard_set.vocabulary.keeps == "bytes" else _load_encoder(shard_set)
        sources = read_sources(shard_set)
    except (ShardSetError, ValueError, OSError) as error:
        return 0, [], [f"against sources: {error}"]
    compared, not_run = 0, dict[str, None]()  # each reason once
    places, problems = _draw(shards, count)
    # Each unit is read once, for all documents that were drawn from it.
    readers: dict[str, ReadDocuments | None] = {}
    for (name, unit), members in sorted(places.items()):
        source = sources.get(name)
        kind = str(source.get("kind")) if source else ""
        if kind not in readers:
            readers[kind] = load_reader(kind)
        reader = readers[kind]
        if source is None:
            why = f": {shard_set.manifest.recipe.file} does not list it. Restore the file the set was built with."
        elif not source["folder"] and _has_relative_paths(source):
            why = (
                ": its paths are relative to the recipe's folder, and nothing says where that is. Copy the set to this "
                f"machine, and write the folder's path to {RECIPE_FOLDER_FILE} next to its manifest."
            )
        elif reader is None:
            why = f": nothing installed reads the kind {kind!r}. Install the package that built the set."
        else:
            try:
                texts = reader(source, unit, [place.row for place in members])
                compared += len(members)
                for place, text in zip(members, texts, strict=True):
                    problems += _compare(shard_set, place, text, encode)
                continue
            except (ValueError, OSError) as error:
                why = f", unit {unit!r}: {error}"
        not_run[f"against sources: source {name!r}{why}"] = None
    return compared, problems, list(not_run)


def _compare(shard_set: ShardSet, place: Place, text: bytes | None, encode: Encode | None) -> list[Problem]:
    """Compare a document with its text at the source."""
    where = f"{place.shard} document {place.document}"
    origin = f"source {place.source!r}, unit {place.unit!r}, row {place.row}"
    if text is None:
        return [Problem("source_mismatch", where, f"{origin}: no such row. The source has changed.")]
    # A tokenizer that rewrites text does not give it back: hash and ids must match it.
    if encode is not None and (digest := hash_document(text).hex()) != place.hash:
        message = (
            f"{origin}: its text hashes to {digest}; the document's hash is {place.hash}. "
            "The source has changed, or the shard comes from another build."
        )
        return [Problem("source_mismatch", where, message)]
    shard, stop = shard_set.shard(place.shard), place.start + place.tokens - 1
    try:
        if encode is not None:
            return _compare_ids(shard.read(place.start, stop).tolist(), encode(text.decode()), where, origin)
        held = read_bytes(shard, place.start, stop, vocabulary=shard_set.vocabulary)
    except ShardSetError as error:
        return error.problems
    problems: list[Problem] = []
    if held != text:
        at = _first_difference(held, text)
        message = (
            f"{origin}: differs from byte {at}: {held[at : at + 40]!r} of {len(held)} bytes in the shard, "
            f"{text[at : at + 40]!r} of {len(text)} at the source. "
            "The source has changed, or the shard comes from another build."
        )
        problems.append(Problem("source_mismatch", where, message))
    if (digest := hash_document(held).hex()) != place.hash:
        problems.append(Problem("document_table", where, f"its hash is {place.hash}; its text hashes to {digest}"))
    return problems


def _compare_ids(tokens: list[int], ids: list[int], where: str, origin: str) -> list[Problem]:
    """Compare the tokens of a document with the ids of its text."""
    # A document may begin with BOS, which the encoder does not give.
    held = tokens[len(tokens) - len(ids) :] if len(tokens) - len(ids) in (0, 1) else tokens
    if held == ids:
        return []
    at = _first_difference(held, ids)
    message = (
        f"{origin}: the tokenizer encodes its text differently, from token {at} on: {ids[at : at + 8]}... of "
        f"{plural(len(ids), 'token')}; the shard holds {held[at : at + 8]}... of {len(held)}. The shard comes from "
        "another build."
    )
    return [Problem("source_mismatch", where, message)]


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the first place at which two sequences differ, or one ends."""
    places = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(places, min(len(one), len(other)))


def _load_encoder(shard_set: ShardSet) -> Encode:
    """Return what encodes a text as the set's documents are encoded, with `tokenizers`."""
    import tokenizers

    entry = shard_set.manifest.tokenizer
    plain = plain_json(json.loads(read_listed_file(shard_set.store, entry.file, entry.sha256)))
    encoder = tokenizers.Tokenizer.from_str(plain)
    return lambda text: encoder.encode(text, add_special_tokens=False).ids


def _draw(shards: Sequence[Shard], count: int) -> tuple[dict[tuple[str, str], list[Place]], list[Problem]]:
    """Draw one document from each of `count` equal parts of the set.

    Returns:
        The documents by source and unit, in the order of their rows; and the problems of tables that cannot be read.
    """
    # A document of each of `count` equal parts of the set, at a seeded place.
    sizes = np.array([shard.num_documents for shard in shards], np.int64)
    total = int(sizes.sum())
    count = min(count, total)
    edges = np.arange(count + 1, dtype=np.int64) * total // max(count, 1)
    picks = edges[:-1] + (np.random.default_rng(SAMPLE_SEED).random(count) * np.diff(edges)).astype(np.int64)
    bounds = np.cumsum(sizes)
    drawn: defaultdict[tuple[str, str], list[Place]] = defaultdict(list)
    problems: list[Problem] = []
    for number, shard in enumerate(shards):
        mine = picks[(picks >= bounds[number] - sizes[number]) & (picks < bounds[number])]
        mine -= bounds[number] - sizes[number]
        try:
            for place in find_places(shard, mine.tolist()):
                drawn[place.source, place.unit].append(place)
        except ShardSetError as error:
            problems += error.problems
    for members in drawn.values():
        members.sort(key=lambda place: place.row)
    return drawn, problems


def _has_relative_paths(source: dict[str, Any]) -> bool:
    paths: Any = source.get("paths")
    texts = [path for path in cast("list[Any]", paths) if isinstance(path, str)] if isinstance(paths, list) else []
    return any("://" not in path and not path.startswith(("/", "~")) for path in texts)


def read_sources(shard_set: ShardSet) -> dict[str, dict[str, Any]]:
    """Return the sources to compare with, by name, each with the `folder` where its relative paths begin ("": unknown).

    Raises:
        ValueError: the set's recipe lists none.
    """
    store, name = shard_set.store, shard_set.manifest.recipe.file
    try:
        root: Any = json.loads(store.read(name))
        sources = cast("list[dict[str, Any]]", root["sources"])
        folder = find_recipe_folder(store)
        return {str(source["name"]): {**source, "folder": str(folder or "")} for source in sources}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{name}: lists no sources by name: {type(error).__name__}: {error}. Restore it from the build."
        raise InputError(message) from error


def load_reader(kind: str) -> ReadDocuments | None:
    """Return the reader with which validation reads a kind of source again; None if none is installed."""
    return load_entry_point(ENTRY_POINT_GROUP, kind)
