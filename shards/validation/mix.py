"""Check that each source's share, over the set and in every shard, is within one document of the requested share.

The tolerance is one that cuts at document boundaries can always keep. With K shards in a split and a target of T
tokens for a source, the target after shard k is T*(k+1)/K. Each cut is the document boundary nearest to its target, so
it is at most half a document away. A shard has two cuts, so it is at most one document away (the longest of
the source). Targets are rounded down to whole tokens, which adds at most two tokens per shard.

Each split states its `requested_tokens`; a source's target is its share of them. A phase states its own, and the shares
of its sources: its shards are compared with these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shards.errors import Problem, plural
from shards.format.manifest import MANIFEST_FILE, Manifest, MixEntry, ShardEntry
from shards.validation.sums import add_sources

ROUNDING_TOKENS = 2


def check_mix_shares(manifest: Manifest, longest: Mapping[str, int]) -> list[Problem]:
    """Check every source's share of the mix.

    Args:
        manifest: the set's manifest; the tokens of a source are added up over its shards.
        longest: tokens in the longest document of each source in the set.
    """
    problems: list[Problem] = []
    for split, entry in manifest.splits.items():
        shards = [shard for shard in manifest.shards if shard.split == split]
        parts: list[_Part] = []
        if split == "train" and manifest.phases:
            for phase in manifest.phases:
                own = [shard for shard in shards if shard.phase == phase.name]
                parts.append(_Part(f"phase {phase.name!r}", own, phase.mix, phase.requested_tokens))
        whole = _Part(split, shards, manifest.mix, entry.requested_tokens)
        problems += _check_part(whole, longest, each_shard=not parts)
        for part in parts:
            problems += _check_part(part, longest)
    return problems


@dataclass(frozen=True, slots=True)
class _Part:
    """A split or a phase: its name, shards, shares and requested tokens."""

    name: str
    shards: list[ShardEntry]
    mix: list[MixEntry]
    requested_tokens: int


def _check_part(part: _Part, longest: Mapping[str, int], *, each_shard: bool = True) -> list[Problem]:
    places = [(MANIFEST_FILE, add_sources(part.shards), part.requested_tokens)]
    if each_shard:
        places += [(shard.name, shard.sources, part.requested_tokens / len(part.shards)) for shard in part.shards]
    problems: list[Problem] = []
    for row in part.mix:
        document = longest.get(row.source, 0)
        for where, sources, tokens in places:
            held, requested = sources[row.source].tokens if row.source in sources else 0, row.requested * tokens
            if abs(held - requested) > document + ROUNDING_TOKENS:
                message = (
                    f"source {row.source!r} holds {plural(held, 'token')} of {part.name}; expected {requested:.0f}, "
                    f"give or take its longest document of {document}"
                )
                problems.append(Problem("mix_share", where, message))
    return problems
