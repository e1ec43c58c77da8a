"""The documents that a report shows, from evenly spaced places of the set."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import codecs
from dataclasses import dataclass

import numpy as np

from shards.errors import plural
from shards.format.arrays import Int64s
from shards.format.document_table import iter_documents, number_sources, read_bytes, wrong_document_table
from shards.format.reader import Shard, ShardSet
from shards.format.vocabulary import Vocabulary
from shards.trace.locate import Place, find_places

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
    numbers = shard_set.source_numbers
    places: dict[str, list[Place]] = {name: [] for name in numbers}
    train = shard_set.manifest.splits.get("train")
    if train is None:
        return places
    # The documents of a source have ordinals over the set: the shards before hold the first ones.
    ordinals = {
        name: np.unique([(2 * part + 1) * held.documents // (2 * number) for part in range(number)])
        for name, held in train.sources.items()
    }
    before = dict.fromkeys(numbers, 0)
    for shard in shard_set.splits["train"]:
        wanted: dict[int, Int64s] = {}
        for name, counts in shard.entry.sources.items():
            own = ordinals[name] - before[name]
            own = own[(own >= 0) & (own < counts.documents)]
            before[name] += counts.documents
            if len(own):
                wanted[numbers[name]] = own
        if wanted:
            for place in find_places(shard, _find_ordinals(shard, numbers, wanted)):
                places[place.source].append(place)
    return places


def read_shown_document(shard: Shard, place: Place, vocabulary: Vocabulary) -> ShownDocument:
    """Return the beginning of a document. A character has at most 4 tokens, so at most 4 for each are read."""
    stop = min(place.tokens - 1, 4 * SHOWN_CHARACTERS + 1)  # one for BOS
    data = read_bytes(shard, place.start, place.start + stop, vocabulary=vocabulary)
    whole = stop == place.tokens - 1
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(data, final=whole)
    return ShownDocument(place, text[:SHOWN_CHARACTERS], whole and len(text) <= SHOWN_CHARACTERS)


def _find_ordinals(shard: Shard, numbers: dict[str, int], wanted: dict[int, Int64s]) -> list[int]:
    """Return the numbers in their shard of the documents that are the n-th of their source there."""
    batches = iter_documents(shard, ["source"])
    sources = np.concatenate([number_sources(shard, batch, numbers) for batch in batches])
    found: list[int] = []
    for code, ordinals in wanted.items():
        rows = np.flatnonzero(sources == code)
        if len(rows) <= ordinals[-1]:
            raise wrong_document_table(
                shard, f"has {plural(len(rows), 'document')} of a source, fewer than the manifest says"
            )
        found += rows[ordinals].tolist()
    return found
