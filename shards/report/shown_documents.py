"""The documents that a report shows: the first of each source in the shuffled order of the set."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import codecs
from dataclasses import dataclass

import numpy as np

from shards.format.document_table import iter_documents, number_sources, read_bytes
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
    """Draw training documents of each source: the first `number` in the set's order.

    Shards are shuffled by content hash, so this is as good as a random draw, and always the same.

    Raises:
        ShardSetError: a document table is not what the manifest says.
    """
    numbers = shard_set.source_numbers
    places: dict[str, list[Place]] = {name: [] for name in numbers}
    for shard in shard_set.splits.get("train", ()):
        wanted = {name: number - len(places[name]) for name in shard.entry.sources if len(places[name]) < number}
        if not wanted:
            continue
        batches = iter_documents(shard, ["source"])
        sources = np.concatenate([number_sources(shard, batch, numbers) for batch in batches])
        rows = [np.flatnonzero(sources == numbers[name])[:most] for name, most in wanted.items()]
        for place in find_places(shard, np.concatenate(rows).tolist()):
            places[place.source].append(place)
    return places


def read_shown_document(shard: Shard, place: Place, vocabulary: Vocabulary) -> ShownDocument:
    """Return the beginning of a document. A character has at most 4 tokens, so at most 4 for each are read."""
    stop = min(place.tokens - 1, 4 * SHOWN_CHARACTERS + 1)  # one for BOS
    data = read_bytes(shard, place.start, place.start + stop, vocabulary=vocabulary)
    whole = stop == place.tokens - 1
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(data, final=whole)
    return ShownDocument(place, text[:SHOWN_CHARACTERS], whole and len(text) <= SHOWN_CHARACTERS)
