"""Check that each source's share, over the set and in every shard, is within one document of the requested share.

The tolerance is one that cuts at document boundaries can always keep. With K shards in a split and a target of T
tokens for a source, the target after shard k is T*(k+1)/K. Each cut is the document boundary nearest to its target, so
it is at most half a document away. A shard has two cuts, so it is at most one document away (the longest of
the source). Targets are rounded down to whole tokens, which adds at most two tokens per shard.

Each split states its `requested_tokens`; a source's target is its share of them. A phase states its own, and the shares
of its sources: its shards are compared with these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shards.errors import Problem, plural
from shards.format.manifest import MANIFEST_FILE, Manifest, MixEntry, ShardEntry
from shards.format.totals import count_by_source

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
        phases = manifest.phases if split == "train" else []
        # The shards of a set with phases have the shares of their phase, not those of the set.
        alone = [] if phases else shards
        problems += _check_part(split, shards, alone, manifest.mix, entry.requested_tokens, longest)
        for phase in phases:
            own = [shard for shard in shards if shard.phase == phase.name]
            problems += _check_part(f"phase {phase.name!r}", own, own, phase.mix, phase.requested_tokens, longest)
    return problems


def _check_part(
    name: str,
    shards: Sequence[ShardEntry],
    alone: Sequence[ShardEntry],
    mix: Sequence[MixEntry],
    requested_tokens: int,
    longest: Mapping[str, int],
) -> Iterator[Problem]:
    """Check the shares of a split or a phase: over all its shards, and in each of those that are checked alone."""
    places = [(MANIFEST_FILE, count_by_source(shards), float(requested_tokens))]
    places += [(shard.name, shard.sources, requested_tokens / len(shards)) for shard in alone]
    # The longest document is all that a cut at a boundary can miss by.
    for row in mix:
        document = longest.get(row.source, 0)
        for where, sources, tokens in places:
            held = sources[row.source].tokens if row.source in sources else 0
            requested = row.requested * tokens
            if abs(held - requested) > document + ROUNDING_TOKENS:
                message = (
                    f"source {row.source!r} holds {plural(held, 'token')} of {name}; expected {requested:.0f}, give or "
                    f"take its longest document of {document}"
                )
                yield Problem("mix_share", where, message)
