"""The documents that a report shows, from evenly spaced places of the set."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import codecs
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shards.format.document_table import iter_documents, read_bytes, rows_by_source, wrong_document_table
from shards.format.reader import Shard, ShardSet
from shards.format.vocabulary import Vocabulary
from shards.trace.locate import Place, find_places

if TYPE_CHECKING:
    pass

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


def draw_shown_places(shard_set: ShardSet, number: int) -> dict[str, list[Place]]:
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
    """Return the beginning of a document. A character has at most 4 tokens, so at most 4 for each are read."""
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
        for name, rows in rows_by_source(batch):
            places = [ordinal - seen[name] for ordinal in wanted.get(name, [])]
            found += [first + int(rows[place]) for place in places if 0 <= place < len(rows)]
            seen[name] += len(rows)
        first += batch.num_rows
    expected = sum(len(ordinals) for ordinals in wanted.values())
    if len(found) != expected:
        raise wrong_document_table(shard, f"documents by source: {dict(seen)}, fewer than the manifest says")
    return sorted(found)
