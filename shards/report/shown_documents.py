"""The documents in a report: lengths by source, and samples from evenly spaced places.

Processes read the tables shard by shard; each returns a histogram of fixed size.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import codecs
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shards.audit.histogram import BINS, bin_lengths
from shards.errors import Problem, ShardSetError
from shards.format.documents import iter_documents, read_bytes
from shards.format.reader import Shard, ShardSet
from shards.format.tokenizer import Vocabulary
from shards.terminal.program import called_as
from shards.trace.locate import Place, find_places
from shards.workers import map_tasks

if TYPE_CHECKING:
    import numpy.typing as npt

    from shards.audit.audit import Progress

SHOWN_CHARACTERS = 700
"""Maximum shown of each document."""


@dataclass(frozen=True)
class ShownDocument:
    """A document to show: its origin, and the beginning of its text.

    `text` has lone surrogates for bytes that are not UTF-8; `whole` is True if it is the whole document.
    """

    place: Place
    text: str
    whole: bool


def count_lengths(shard_set: ShardSet, *, workers: int, progress: Progress | None) -> npt.NDArray[np.int64]:
    """Count documents by source and length, over both splits.

    Args:
        shard_set: the set.
        workers: processes.
        progress: called with tokens done and tokens in all.

    Returns:
        int64 `(sources, histogram.BINS)`, sources in the manifest's order.

    Raises:
        ShardSetError: a document table is not what the manifest says.
    """
    total, done = sum(shard.num_tokens for shard in shard_set.shards), 0
    counts = np.zeros((len(shard_set.manifest.sources), BINS), np.int64)
    for number, found in map_tasks(count_shard_lengths, shard_set, range(len(shard_set.shards)), workers):
        counts += found
        done += shard_set.shards[number].num_tokens
        if progress is not None:
            progress(done, total)
    return counts


def count_shard_lengths(shard_set: ShardSet, number: int) -> npt.NDArray[np.int64]:
    """Count the documents of the shard of this number by source and length, int64 `(sources, BINS)`."""
    numbers = {source.name: number for number, source in enumerate(shard_set.manifest.sources)}
    shard = shard_set.shards[number]
    counts = np.zeros((len(numbers), BINS), np.int64)
    for batch in iter_documents(shard, ["length", "source"]):
        lengths = cast("npt.NDArray[np.uint32]", np.from_dlpack(batch.column("length"))).astype(np.int64)
        bins = bin_lengths(lengths)
        for name, rows in _rows_by_source(batch):
            if name not in numbers:
                raise _wrong_table(shard, f"source {name!r}, which the manifest does not list")
            counts[numbers[name]] += np.bincount(bins[rows], minlength=BINS)
    return counts


def draw_places(shard_set: ShardSet, number: int) -> dict[str, list[Place]]:
    """Draw training documents of each source, spread evenly over the set: the middles of `number` equal parts.

    Shards are shuffled by content hash, so this is as good as a random draw, and always the same.

    Raises:
        ShardSetError: a document table is not what the manifest says.
    """
    train = shard_set.manifest.splits.get("train")
    wanted: defaultdict[int, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for name, held in train.sources.items() if train else ():
        ordinals = sorted({(2 * part + 1) * held.documents // (2 * number) for part in range(number)})
        first = 0
        for index, shard in enumerate(shard_set.shards):
            counts = shard.entry.sources.get(name) if shard.entry.split == "train" else None
            after = first + (counts.documents if counts else 0)
            own = [ordinal - first for ordinal in ordinals if first <= ordinal < after]
            if own:
                wanted[index][name] += own
            first = after
    places: dict[str, list[Place]] = {source.name: [] for source in shard_set.manifest.sources}
    for index, by_source in sorted(wanted.items()):
        shard = shard_set.shards[index]
        for place in find_places(shard, _find_ordinals(shard, by_source)):
            places[place.source].append(place)
    return places


def read_shown_document(
    shard: Shard, place: Place, vocabulary: Vocabulary, *, characters: int = SHOWN_CHARACTERS
) -> ShownDocument:
    """Return the beginning of a document. A character has at most 4 tokens, so no more than that are read."""
    stop = min(place.tokens - 1, 4 * characters + 1)  # one for BOS
    data = read_bytes(shard, place.start, place.start + stop, vocabulary=vocabulary)
    whole = stop == place.tokens - 1
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(data, final=whole)
    return ShownDocument(place, text[:characters], whole and len(text) <= characters)


def _find_ordinals(shard: Shard, wanted: dict[str, list[int]]) -> list[int]:
    """Return the numbers in their shard of the documents that are the n-th of their source there."""
    found: list[int] = []
    seen: defaultdict[str, int] = defaultdict(int)
    first = 0
    for batch in iter_documents(shard, ["source"]):
        for name, rows in _rows_by_source(batch):
            places = [ordinal - seen[name] for ordinal in wanted.get(name, [])]
            found += [first + int(rows[place]) for place in places if 0 <= place < len(rows)]
            seen[name] += len(rows)
        first += batch.num_rows
    expected = sum(len(ordinals) for ordinals in wanted.values())
    if len(found) != expected:
        raise _wrong_table(shard, f"{dict(seen)} documents by source, fewer than the manifest says")
    return sorted(found)


def _rows_by_source(batch: Any) -> list[tuple[str, npt.NDArray[np.int64]]]:
    sources = batch.column("source")
    indices = cast("npt.NDArray[np.int32]", np.from_dlpack(sources.indices))
    names: list[str] = sources.dictionary.to_pylist()
    return [(name, np.flatnonzero(indices == code)) for code, name in enumerate(names)]


def _wrong_table(shard: Shard, what: str) -> ShardSetError:
    message = f"{what}. Run `{called_as('shards', 'validate')}`, and build the shard again."
    return ShardSetError([Problem("document_table", shard.entry.files.documents.path, message)])
