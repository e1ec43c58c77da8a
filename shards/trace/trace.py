"""Find the documents that hold a token, a string or a pattern, or have a content hash, or the document at a place.

Every shard is searched (`shards.trace.search` says how, and what it costs). A search by content hash costs one pass
over the column `hash` of the document tables, 16 bytes per document.
"""

# pyright: reportUnknownMemberType=false
import re
from dataclasses import asdict, dataclass

import numpy as np

from shards.errors import InputError
from shards.format.arrays import UInt8s
from shards.format.content_hash import read_column
from shards.format.reader import ShardSet, open_set
from shards.format.shard import Shard, iter_documents
from shards.stores.open import AnyPath
from shards.terminal.display import JsonObject
from shards.terminal.reporter import Progress, count_up, no_progress
from shards.terminal.workers import map_tasks
from shards.trace.locate import Place, cut_tokens, find_holders, find_places
from shards.trace.search import Hit, Query, prepare_search, search_shard


@dataclass(frozen=True)
class Trace:
    """The documents that a search of a set found.

    Attributes:
        asked: the flags of `trace` that make this search, and their values.
        query: the same as JSON values.
        sources: documents with hits and the number of hits in them, by the name of their source.
        shown: the first documents.
        hashes: the content hashes of all, uint8 `(documents, 16)`.
    """

    asked: str
    query: JsonObject
    sources: dict[str, dict[str, int]]
    shown: list[Hit]
    hashes: UInt8s

    @property
    def documents(self) -> int:
        """How many documents were found."""
        return len(self.hashes)

    @property
    def hits(self) -> int:
        """Hits in all documents."""
        return sum(counts["hits"] for counts in self.sources.values())

    def to_dict(self) -> JsonObject:
        """Return the JSON object that `trace --json` prints."""
        return {
            "query": self.query,
            "documents": self.documents,
            "hits": self.hits,
            "sources": self.sources,
            "shown": [hit.to_dict() for hit in self.shown],
        }


def trace(
    path: AnyPath,
    query: Query,
    *,
    limit: int,
    workers: int = 1,
    progress: Progress = no_progress,
) -> Trace:
    """Find the documents of a set that match a query.

    Args:
        path: the set's folder.
        query: the query.
        limit: how many documents to describe. All are counted.
        workers: number of processes; the result does not depend on it.
        progress: called with tokens done and tokens in all.

    Raises:
        InputError: the query is empty, its id is not in the vocabulary, or its pattern is not valid; or the tokenizer
            is not byte-level.
        ShardSetError: the set's files are not what the manifest says.
        OSError: a file cannot be read.
    """
    shard_set = open_set(path)
    search = prepare_search(shard_set, query, limit)
    names = shard_set.manifest.source_names
    advance = count_up(progress, shard_set.shards.num_tokens)
    described, hashes = list[Hit](), [np.empty((0, 16), np.uint8)]
    # Documents and hits of each source, added up in the order of the manifest.
    by_source = np.zeros((2, len(names)), np.int64)
    for index, part in map_tasks(search_shard, search, range(len(shard_set.shards)), workers):
        counts, of_shard, shown = part
        hashes.append(of_shard)
        by_source += counts
        described += shown[: limit - len(described)]
        advance(shard_set.shards[index].num_tokens)
    sources = {
        name: {"documents": documents, "hits": hits}
        for name, documents, hits in zip(names, *by_source.tolist(), strict=True)
        if documents
    }
    return Trace(f"--{query.kind} {query.value}", asdict(query), sources, described, np.concatenate(hashes))


def trace_token(shard_set: ShardSet, shard: Shard, offset: int) -> Hit:
    """Trace a token, given by its number in a shard, to the document that holds it.

    Raises:
        InputError: there is no such token, or the tokenizer is not byte-level.
        ShardSetError: the shard's files are not what the manifest says.
    """
    if not 0 <= offset < shard.num_tokens:
        raise InputError(f"no token {offset} in {shard.name}; it has {shard.num_tokens}, counted from 0")
    [[place]] = find_holders(shard, [(offset, offset + 1)])
    position = offset - place.start
    tokens = shard.read(place.start, place.start + place.tokens)
    byte, excerpt = cut_tokens(tokens, position, position + 1, shard_set.vocabulary)
    return Hit(place, 1, position, byte, excerpt)


def parse_hash(text: str) -> str:
    """Return the hexadecimal digits of a hash to trace, as a person gives it.

    Raises:
        InputError: it is not a content hash.
    """
    digits = text.strip().lower()
    if not re.fullmatch(r"[0-9a-f]{32}", digits):
        raise InputError(
            f"--hash {text!r:.60}: expected a content hash: 32 hexadecimal digits. `--document FILE` takes a "
            "document's text."
        )
    return digits


def find_hash(shard_set: ShardSet, digits: str, *, workers: int) -> list[Place]:
    """Return the places of the documents with a hash, in the set's order; several if a source is repeated.

    Args:
        shard_set: the set.
        digits: the digits of the hash.
        workers: number of processes; the result does not depend on it.

    Raises:
        ShardSetError: a document table is not what the manifest says.
        OSError: a file cannot be read.
    """
    searched = map_tasks(_search, (shard_set, digits), range(len(shard_set.shards)), workers)
    return [place for _, places in searched for place in places]


def _search(shared: tuple[ShardSet, str], number: int) -> list[Place]:
    shard_set, digits = shared
    shard = shard_set.shards[number]
    wanted = np.frombuffer(bytes.fromhex(digits), np.uint8)
    numbers: list[int] = []
    first = 0
    for batch in iter_documents(shard, ["hash"]):
        found = (read_column(batch.column("hash")) == wanted).all(axis=1)
        numbers += (first + np.flatnonzero(found)).tolist()
        first += batch.num_rows
    return find_places(shard, numbers)


def describe_found_hash(shard_set: ShardSet, place: Place) -> JsonObject:
    """Return a place of a traced hash, by `find_hash`, as JSON values, with its split and the file of its unit."""
    split = shard_set.shard(place.shard).entry.split
    return {"split": split, "file": place.unit.rpartition("@")[0] or place.unit} | place.to_dict()
