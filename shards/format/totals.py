"""The splits, the mix and the phases of a manifest, computed from its shards: by a build, and again by validation."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from shards.format.manifest import Manifest, MixEntry, PhaseEntry, ShardEntry, SourceCounts, Split, SplitEntry

SHARE_PRECISION = 1e-9
"""Shares are 64-bit floats. Two ways to compute the same share differ by less than this."""


def count_by_source(shards: Iterable[ShardEntry], names: Iterable[str] = ()) -> dict[str, SourceCounts]:
    """Return totals of each source over shards: of `names` in this order, then of others that the shards hold."""
    tokens, documents = Counter(dict.fromkeys(names, 0)), Counter[str]()
    for shard in shards:
        for name, counts in shard.sources.items():
            tokens[name] += counts.tokens
            documents[name] += counts.documents
    return {name: SourceCounts.model_construct(tokens=tokens[name], documents=documents[name]) for name in tokens}


def count_all(counts: Iterable[SourceCounts]) -> SourceCounts:
    """Return the totals of tokens and documents over several counts."""
    parts = list(counts)
    tokens, documents = sum(part.tokens for part in parts), sum(part.documents for part in parts)
    return SourceCounts.model_construct(tokens=tokens, documents=documents)


def describe_split(shards: Iterable[ShardEntry], names: Sequence[str], requested_tokens: int) -> SplitEntry:
    """Return the totals of a split, or of a phase of it, from its shards."""
    sources = count_by_source(shards, names)
    total = count_all(sources.values())
    return SplitEntry.model_construct(
        requested_tokens=requested_tokens, tokens=total.tokens, documents=total.documents, sources=sources
    )


def describe_mix(
    requested: Mapping[str, float], requested_tokens: Sequence[int], sources: Mapping[str, SourceCounts]
) -> list[MixEntry]:
    """Return the rows of a manifest's mix.

    Args:
        requested: the share of each source, in the sources' order.
        requested_tokens: tokens requested of each, in the same order.
        sources: what the split, or the phase, holds of each.
    """
    total = count_all(sources.values()).tokens
    return [
        MixEntry.model_construct(
            source=name,
            requested=share,
            achieved=sources[name].tokens / total if total else 0.0,
            requested_tokens=tokens,
            achieved_tokens=sources[name].tokens,
        )
        for (name, share), tokens in zip(requested.items(), requested_tokens, strict=True)
    ]


def describe_phase(name: str, share: float, split: SplitEntry, mix: list[MixEntry]) -> PhaseEntry:
    """Return a phase of a manifest, of whose shards `split` has the totals and `mix` the shares."""
    return PhaseEntry.model_construct(
        name=name,
        share=share,
        requested_tokens=split.requested_tokens,
        tokens=split.tokens,
        documents=split.documents,
        mix=mix,
    )


def remake_totals(manifest: Manifest) -> Manifest:
    """Return a manifest with its splits, mix and phases as its shards, weights and requested tokens give them.

    Shares of phases cannot be computed from the manifest: they stay. So do requested tokens that are near enough: each
    was rounded down from an exact share.
    """
    names = manifest.source_names
    splits: dict[Split, SplitEntry] = {}
    listed: list[Split] = [*manifest.splits, *(shard.split for shard in manifest.shards)]
    for split in dict.fromkeys(listed):
        requested_tokens = manifest.splits[split].requested_tokens if split in manifest.splits else 0
        shards = (shard for shard in manifest.shards if shard.split == split)
        splits[split] = describe_split(shards, names, requested_tokens)
    train = splits.get("train") or describe_split((), names, 0)
    phases: list[PhaseEntry] = []
    for phase in manifest.phases:
        shards = (shard for shard in manifest.shards if shard.split == "train" and shard.phase == phase.name)
        own = describe_split(shards, names, _near(phase.requested_tokens, phase.share * train.requested_tokens, 1))
        requested = {row.source: row.requested for row in phase.mix}
        shares = {name: requested.get(name, 0.0) for name in names}
        phases.append(describe_phase(phase.name, phase.share, own, _remake_mix(phase.mix, shares, own)))
    # The share of a source in the set: by its weight, or by its shares of all phases.
    weights = {source.name: source.weight for source in manifest.sources}
    shares = {name: weight / (sum(weights.values()) or 1.0) for name, weight in weights.items()}
    if phases:
        shares = {
            name: sum(phase.share * row.requested for phase in phases for row in phase.mix if row.source == name)
            for name in names
        }
    mix = _remake_mix(manifest.mix, shares, train)
    return manifest.with_values(splits=splits, phases=phases, mix=mix)


def _remake_mix(written: Sequence[MixEntry], shares: Mapping[str, float], split: SplitEntry) -> list[MixEntry]:
    known = {row.source: row.requested_tokens for row in written}
    targets = [share * split.requested_tokens for share in shares.values()]
    tokens = [
        _near(known.get(name, 0), target, len(shares) + split.requested_tokens * SHARE_PRECISION)
        for name, target in zip(shares, targets, strict=True)
    ]
    return describe_mix(shares, tokens, split.sources)


def _near(written: int, exact: float, slack: float) -> int:
    """Return a total of tokens as the manifest writes it, if it may be the exact one after rounding."""
    near = abs(written - exact) <= slack + exact * SHARE_PRECISION
    return written if near or not math.isfinite(exact) else int(exact)
