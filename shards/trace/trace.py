"""Find the documents that hold a token, a string or a pattern, or the document at a place.

Every shard is searched (`shards.trace.search` says how, and what it costs).
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.format.reader import Shard, ShardSet, open_set
from shards.terminal.reporter import Progress, no_progress
from shards.trace.excerpt import read_excerpt
from shards.trace.locate import find_holders
from shards.trace.search import Hit, Query, check_query, prepare_search, search_shard
from shards.workers import map_tasks

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass
class SourceHits:
    """Documents of one source with hits, and the number of hits in them."""

    documents: int = 0
    hits: int = 0


@dataclass
class Trace:
    """The result of a trace: the first documents (`shown`), and `hashes` uint8 `(documents, 16)` of all."""

    query: Query
    documents: int = 0
    hits: int = 0
    sources: dict[str, SourceHits] = field(default_factory=dict[str, SourceHits])
    shown: list[Hit] = field(default_factory=list[Hit])
    hashes: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 16), np.uint8))

    @property
    def asked(self) -> str:
        """The flag of `trace` that makes this query, and its value."""
        return f"--{self.query.kind} {self.query.value}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that `trace --json` prints."""
        return {
            "query": asdict(self.query),
            "documents": self.documents,
            "hits": self.hits,
            "sources": {name: asdict(counts) for name, counts in self.sources.items()},
            "shown": [hit.to_dict() for hit in self.shown],
        }


def trace(
    path: str | os.PathLike[str],
    query: Query,
    *,
    limit: int | None = 20,
    workers: int = 1,
    progress: Progress = no_progress,
) -> Trace:
    """Find the documents of a set that match a query.

    Args:
        path: the set's folder.
        query: the query.
        limit: how many documents to describe; all when None. All are counted.
        workers: number of processes; the result does not depend on it.
        progress: called with tokens done and tokens in all.

    Raises:
        ValueError: the query is empty, its id is not in the vocabulary, or its pattern is not valid; or the tokenizer
            is not byte-level.
        ShardSetError: the set's files are not what the manifest says.
        OSError: a file cannot be read.
    """
    shard_set = open_set(path)
    check_query(query, shard_set.vocab_size)
    search = prepare_search(shard_set, query, limit)
    found = Trace(query)
    total, done = sum(shard.num_tokens for shard in shard_set.shards), 0
    hashes: list[npt.NDArray[np.uint8]] = []
    names = [source.name for source in shard_set.manifest.sources]
    for index, part in map_tasks(search_shard, search, range(len(shard_set.shards)), workers):
        hashes.append(part.hashes)
        for number in np.flatnonzero(part.documents).tolist():
            counts = found.sources.setdefault(names[number], SourceHits())
            counts.documents += int(part.documents[number])
            counts.hits += int(part.hits[number])
        found.shown += part.shown if limit is None else part.shown[: limit - len(found.shown)]
        done += shard_set.shards[index].num_tokens
        progress(done, total)
    found.hashes = np.concatenate([found.hashes, *hashes])
    found.documents = len(found.hashes)
    found.hits = sum(counts.hits for counts in found.sources.values())
    return found


def trace_token(shard_set: ShardSet, shard: Shard, offset: int) -> Hit:
    """Trace a token, given by its number in a shard, to the document that holds it.

    Raises:
        ValueError: there is no such token, or the tokenizer is not byte-level.
        ShardSetError: the shard's files are not what the manifest says.
    """
    if not 0 <= offset < shard.num_tokens:
        raise ValueError(f"no token {offset} in {shard.name}; it has {shard.num_tokens}, counted from 0")
    [[place]] = find_holders(shard, [(offset, offset + 1)])
    position = offset - place.start
    byte, excerpt = read_excerpt(shard, place, position, position + 1, vocabulary=shard_set.vocabulary)
    return Hit(place, 1, position, byte, excerpt)
