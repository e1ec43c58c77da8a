"""Sums over a manifest's shards: tokens and documents by source, and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from shards.errors import ProblemKind, plural
from shards.format.manifest import ShardEntry, SourceCounts

Faults: TypeAlias = Iterator[tuple[ProblemKind, str]]
"""The kinds and messages of problems of the manifest."""

NOTHING = SourceCounts(tokens=0, documents=0)


def add_sources(shards: Iterable[ShardEntry]) -> dict[str, SourceCounts]:
    """Return the sums of each source over shards, by the manifest: tokens and documents."""
    tokens, documents = Counter[str](), Counter[str]()
    for shard in shards:
        for name, counts in shard.sources.items():
            tokens[name] += counts.tokens
            documents[name] += counts.documents
    return {name: SourceCounts.model_construct(tokens=tokens[name], documents=documents[name]) for name in tokens}


def add_counts(counts: Iterable[SourceCounts]) -> SourceCounts:
    """Return the sums of tokens and documents over several counts."""
    tokens = documents = 0
    for count in counts:
        tokens += count.tokens
        documents += count.documents
    return SourceCounts.model_construct(tokens=tokens, documents=documents)


def show_counts(tokens: int, documents: int) -> str:
    """Return tokens and documents in words, for a message."""
    return f"{plural(tokens, 'token')} in {plural(documents, 'document')}"
