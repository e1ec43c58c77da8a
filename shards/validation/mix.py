"""Check that each source's share, over the set and in every shard, is within one document of the requested share.

The tolerance is one that cuts at document boundaries can always keep. With K shards in a split and a target of T
tokens for a source, the target after shard k is T*(k+1)/K. Each cut is the document boundary nearest to its target, so
it is at most half a document away. A shard has two cuts, so it is at most one document away (the longest of
the source). Targets are rounded down to whole tokens, which adds at most two tokens a shard.

Each split states its `requested_tokens`; a source's target is its share of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from shards.errors import Problem
from shards.format.manifest import MANIFEST_FILE, Manifest, MixEntry, Split
from shards.validation.manifest import add_sources

ROUNDING_TOKENS = 2


def check_shares(manifest: Manifest, longest: Mapping[str, int]) -> list[Problem]:
    """Check every source's share.

    Args:
        manifest: the set's manifest; the tokens of a source are added up over its shards.
        longest: tokens in the longest document of each source in the set.
    """
    return [
        problem
        for split in manifest.splits
        for row in manifest.mix
        for problem in _check_split(manifest, split, row, longest.get(row.source, 0))
    ]


def _check_split(manifest: Manifest, split: Split, row: MixEntry, document: int) -> list[Problem]:
    shards = [shard for shard in manifest.shards if shard.split == split]
    whole = add_sources(shards)
    target = row.requested * manifest.splits[split].requested_tokens
    places = [(MANIFEST_FILE, whole, target)]
    places += [(shard.name, shard.sources, target / len(shards)) for shard in shards]
    problems: list[Problem] = []
    for where, sources, requested in places:
        held = sources[row.source].tokens if row.source in sources else 0
        if abs(held - requested) > document + ROUNDING_TOKENS:
            message = (
                f"source {row.source!r} holds {held} tokens of {split}; expected {requested:.0f}, "
                f"give or take its longest document of {document}"
            )
            problems.append(Problem("mix_share", where, message))
    return problems
