"""Sums over a manifest's shards: tokens and documents by source, and in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from shards.errors import plural
from shards.format.manifest import ShardEntry, SourceCounts

NOTHING = SourceCounts(tokens=0, documents=0)


def add_sources(shards: Iterable[ShardEntry]) -> dict[str, SourceCounts]:
    """Return the sums of each source over shards, by the manifest: tokens and documents."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for shard in shards:
        for name, counts in shard.sources.items():
            sums[name][0] += counts.tokens
            sums[name][1] += counts.documents
    return {name: SourceCounts.model_construct(tokens=tokens, documents=rows) for name, (tokens, rows) in sums.items()}


def add_counts(counts: Iterable[SourceCounts]) -> SourceCounts:
    """Return the sums of tokens and documents over several counts."""
    tokens = documents = 0
    for count in counts:
        tokens += count.tokens
        documents += count.documents
    return SourceCounts.model_construct(tokens=tokens, documents=documents)


def show_counts(counts: SourceCounts) -> str:
    """Return sums of tokens and documents in words, for a message."""
    return f"{plural(counts.tokens, 'token')} in {plural(counts.documents, 'document')}"
