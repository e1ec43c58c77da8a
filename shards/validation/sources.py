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
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from shards.errors import InputError, Problem, ShardSetError, plural
from shards.format.arrays import Int64s
from shards.format.content_hash import hash_document
from shards.format.document_table import iter_documents, read_bytes
from shards.format.listed_files import read_listed_file
from shards.format.reader import Shard, ShardSet
from shards.format.recipe_folder import RECIPE_FOLDER_FILE, find_recipe_folder
from shards.format.tokenizer_json import plain_json
from shards.format.vocabulary import Vocabulary

ENTRY_POINT_GROUP = "tokenmill.sources"
SAMPLE_SEED = 0x746D696C


class ReadDocuments(Protocol):
    """A reader of one kind of source, found by entry point.

    Its arguments are the source's object in recipe.json, with the `folder` added that its paths are relative to; the
    name of a unit, as in the document table; and row numbers in the unit. It returns the text of each row as UTF-8
    bytes, in the order of the row numbers, and None for a row that does not exist. It raises ValueError or OSError,
    with a message for the user, if the source cannot be read.
    """

    def __call__(self, source: dict[str, Any], unit: str, rows: list[int]) -> list[bytes | None]: ...


@dataclass
class SourceComparison:
    """The result of a comparison: documents compared, problems, and sources that could not be read."""

    compared: int = 0
    problems: list[Problem] = field(default_factory=list[Problem])
    not_run: list[str] = field(default_factory=list[str])


class _Sample(NamedTuple):
    """One document to compare."""

    shard: Shard
    number: int
    start: int
    stop: int
    row: int
    digest: bytes

    @property
    def where(self) -> str:
        return f"{self.shard.name} document {self.number}"


def compare_with_sources(shard_set: ShardSet, shards: Sequence[Shard], count: int) -> SourceComparison:
    """Compare sampled documents with their sources, byte for byte.

    If the tokenizer rewrites text, the source's text is hashed and encoded again: hash and ids must equal the set's.

    Args:
        shard_set: the set.
        shards: shards whose files are sound; documents are sampled from these.
        count: how many documents to compare; all if the set has fewer.
    """
    found = SourceComparison()
    manifest = shard_set.manifest
    try:
        # Without these nothing can be compared; that is no problem of the set.
        vocabulary = shard_set.vocabulary
        encode = _load_encoder(shard_set)
        sources = read_sources(shard_set)
    except (ShardSetError, ValueError, OSError) as error:
        found.not_run.append(f"against sources: {error}")
        return found
    # Each unit is read once, for all documents that were drawn from it.
    readers: dict[str, ReadDocuments | None] = {}
    for (name, unit), members in sorted(_draw(shards, count, found).items()):
        source = sources.get(name)
        kind = str(source.get("kind")) if source else ""
        if kind not in readers:
            readers[kind] = load_reader(kind)
        reader = readers[kind]
        where = f"against sources: source {name!r}"
        if source is None:
            why = f"{manifest.recipe.file} does not list it. Restore the file the set was built with."
            found.not_run.append(f"{where}: {why}")
        elif not source["folder"] and _has_relative_paths(source):
            found.not_run.append(
                f"{where}: its paths are relative to the recipe's folder, and nothing says where that is. Copy the set "
                f"to this machine, and write the folder's path to {RECIPE_FOLDER_FILE} next to its manifest."
            )
        elif reader is None:
            why = f"nothing installed reads the kind {kind!r}. Install the package that built the set."
            found.not_run.append(f"{where}: {why}")
        else:
            try:
                texts = reader(source, unit, [sample.row for sample in members])
            except (ValueError, OSError) as error:
                found.not_run.append(f"{where}, unit {unit!r}: {error}")
                continue
            found.compared += len(members)
            for sample, text in zip(members, texts, strict=True):
                origin = f"source {name!r}, unit {unit!r}, row {sample.row}"
                found.problems += _compare(sample, text, vocabulary, encode, origin)
    found.not_run = list(dict.fromkeys(found.not_run))
    return found


def _compare(
    sample: _Sample, text: bytes | None, vocabulary: Vocabulary, encode: Callable[[str], list[int]], origin: str
) -> list[Problem]:
    if text is None:
        return [Problem("source_mismatch", sample.where, f"{origin}: no such row. The source has changed.")]
    if vocabulary.keeps != "bytes":
        return _compare_ids(sample, text, encode, origin)
    try:
        held = read_bytes(sample.shard, sample.start, sample.stop - 1, vocabulary=vocabulary)
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
        problems.append(Problem("source_mismatch", sample.where, message))
    if hash_document(held) != sample.digest:
        message = f"its hash is {sample.digest.hex()}; its text hashes to {hash_document(held).hex()}"
        problems.append(Problem("document_table", sample.where, message))
    return problems


def _compare_ids(sample: _Sample, text: bytes, encode: Callable[[str], list[int]], origin: str) -> list[Problem]:
    """Compare a document whose tokenizer rewrites text: hash and ids must match the text."""
    if (digest := hash_document(text)) != sample.digest:
        message = (
            f"{origin}: its text hashes to {digest.hex()}; the document's hash is {sample.digest.hex()}. "
            "The source has changed, or the shard comes from another build."
        )
        return [Problem("source_mismatch", sample.where, message)]
    ids = encode(text.decode())
    try:
        tokens: list[int] = sample.shard.read(sample.start, sample.stop - 1).tolist()
    except ShardSetError as error:
        return error.problems
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
    return [Problem("source_mismatch", sample.where, message)]


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the first place at which two sequences differ, or one ends."""
    places = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(places, min(len(one), len(other)))


def _load_encoder(shard_set: ShardSet) -> Callable[[str], list[int]]:
    """Return what encodes a text as the set's documents are encoded, with `tokenizers`."""
    import tokenizers

    entry = shard_set.manifest.tokenizer
    plain = plain_json(json.loads(read_listed_file(shard_set.store, entry.file, entry.sha256)))
    encoder = tokenizers.Tokenizer.from_str(plain)
    return lambda text: encoder.encode(text, add_special_tokens=False).ids


def _draw(shards: Sequence[Shard], count: int, found: SourceComparison) -> dict[tuple[str, str], list[_Sample]]:
    """Draw one document from each of `count` equal parts of the set. Group them by source and unit, ordered by row."""
    # A document of each of `count` equal parts of the set, at a seeded place.
    sizes = np.array([shard.num_documents for shard in shards], np.int64)
    total = int(sizes.sum())
    count = min(count, total)
    edges = np.arange(count + 1, dtype=np.int64) * total // max(count, 1)
    picks = edges[:-1] + (np.random.default_rng(SAMPLE_SEED).random(count) * np.diff(edges)).astype(np.int64)
    bounds = np.cumsum(sizes)
    samples: defaultdict[tuple[str, str], list[_Sample]] = defaultdict(list)
    for number, shard in enumerate(shards):
        mine = picks[(picks >= bounds[number] - sizes[number]) & (picks < bounds[number])]
        mine -= bounds[number] - sizes[number]
        try:
            for key, sample in _pick_rows(shard, mine) if len(mine) else ():
                samples[key].append(sample)
        except ShardSetError as error:
            found.problems += error.problems
    for members in samples.values():
        members.sort(key=lambda sample: sample.row)
    return samples


def _pick_rows(shard: Shard, numbers: Int64s) -> list[tuple[tuple[str, str], _Sample]]:
    picked: list[tuple[tuple[str, str], _Sample]] = []
    first = 0
    for batch in iter_documents(shard, ["start", "length", "source", "unit", "row", "hash"]):
        # Of a batch, the rows that were drawn.
        here = numbers[(numbers >= first) & (numbers < first + batch.num_rows)]
        rows: list[dict[str, Any]] = batch.take((here - first).tolist()).to_pylist() if len(here) else []
        for number, row in zip(here.tolist(), rows, strict=True):
            stop = row["start"] + row["length"]
            sample = _Sample(shard, number, row["start"], stop, row["row"], row["hash"])
            picked.append(((row["source"], row["unit"]), sample))
        first += batch.num_rows
    return picked


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
    from importlib.metadata import entry_points

    found = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == kind]
    try:
        return cast("ReadDocuments", found[0].load()) if found else None
    except ModuleNotFoundError:  # the entry point belongs to a package that cannot be imported here
        return None
