"""Each source's share: over the set, and in every shard of each split, within one document of what was asked.

What is checked is what cutting at document boundaries can always keep. With K shards in a split and a source's target
of T tokens in it, the target after shard k is T*(k+1)/K. Each cut is the document boundary nearest to its target, so it
lies at most half a document away, and a shard, which has two cuts, at most one document (the source's longest in the
set). Targets are rounded down to whole tokens, which adds at most two tokens a shard.

The training split's targets are in the manifest. Validation's are not: its whole is compared with the shares of what
validation achieved, which moves with every source's rounding, and its shards with the source's own achieved tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

from shards.manifest import MANIFEST_FILE, Manifest, Split
from shards.problems import Problem
from shards.totals import add_sources

ROUNDING_TOKENS = 2


def check_shares(manifest: Manifest, longest: Mapping[str, int]) -> list[Problem]:
    """Check every source's share.

    Args:
        manifest: the set's manifest; what is held is added up from its shards.
        longest: tokens in the longest document of each source in the set.
    """
    problems: list[Problem] = []
    train = add_sources(shard for shard in manifest.shards if shard.split == "train")
    val = add_sources(shard for shard in manifest.shards if shard.split == "val")
    val_tokens = sum(counts.tokens for counts in val.values())
    for row in manifest.mix:
        document = longest.get(row.source, 0)
        held = train[row.source].tokens if row.source in train else 0
        if abs(held - row.requested_tokens) > document + ROUNDING_TOKENS:
            problems.append(_problem(MANIFEST_FILE, row.source, "train", held, row.requested_tokens, document))
        problems += _check_shards(manifest, "train", row.source, float(row.requested_tokens), document)
        held = val[row.source].tokens if row.source in val else 0
        requested = row.requested * val_tokens
        others = sum(longest.get(other.source, 0) for other in manifest.mix)
        slack = row.requested * (others / 2 + len(manifest.mix))
        if abs(held - requested) > document + slack + ROUNDING_TOKENS:
            problems.append(_problem(MANIFEST_FILE, row.source, "val", held, requested, document))
        problems += _check_shards(manifest, "val", row.source, float(held), document)
    return problems


def _check_shards(manifest: Manifest, split: Split, source: str, target: float, document: int) -> list[Problem]:
    shards = [shard for shard in manifest.shards if shard.split == split]
    problems: list[Problem] = []
    for shard in shards:
        held = shard.sources[source].tokens if source in shard.sources else 0
        requested = target / len(shards)
        # Validation's target is what it achieved, up to half a document from what was asked, spread over its shards.
        slack = document / (2 * len(shards)) if split == "val" else 0.0
        if abs(held - requested) > document + slack + ROUNDING_TOKENS:
            problems.append(_problem(shard.name, source, split, held, requested, document))
    return problems


def _problem(where: str, source: str, split: str, held: int, requested: float, document: int) -> Problem:
    message = (
        f"source {source!r} holds {held} tokens of {split}; expected {requested:.0f}, "
        f"give or take its longest document of {document}"
    )
    return Problem("mix_share", where, message)
