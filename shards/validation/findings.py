"""Check one shard in full, and join what the checks of all shards have found.

`collect_shard_findings` needs the shard's entry and nothing else of the set, so that it runs in a thread or on another
host; `ShardFindings` can be written as JSON. `join_findings` has the order of problems and the checks that need all
shards but no hashes. Memory: the findings, about 1 KB a shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shards.errors import Problem
from shards.format.manifest import Manifest
from shards.format.reader import Shard
from shards.format.writer import SetProperties
from shards.validation.files import Listing, check_shard_files
from shards.validation.mix import check_mix_shares
from shards.validation.shard_contents import ContentRules, ShardContents, check_shard_contents


@dataclass(frozen=True, slots=True)
class ShardFindings:
    """The findings of the checks of one shard."""

    problems: list[Problem]
    """Those of the quick level."""
    sound: list[str]
    """The names of its files that may be opened, sorted."""
    contents: ShardContents


def collect_shard_findings(
    shard: Shard,
    shared: SetProperties,
    listing: Listing,
    rules: ContentRules,
    advance: Callable[[int], None] | None = None,
) -> ShardFindings:
    """Collect the findings of one shard: of its files, then of their content.

    Args:
        shard: the shard.
        shared: what the manifest says of all shards.
        listing: of the set's place, or its entries for this shard's files.
        rules: how its contents are checked.
        advance: called with the number of tokens checked since the last call.

    Raises:
        InputError: the store cannot be read.
    """
    problems, sound = check_shard_files(shard, shared, listing)
    return ShardFindings(problems, sorted(sound), check_shard_contents(shard, sound, rules, advance=advance))


@dataclass
class JoinedFindings:
    """The findings of the checks of all shards.

    `tokens` and `documents` count what was read and checked. `trusted` are the shards whose document tables are sound,
    and `coverage` the ranges of hashes of each.
    """

    problems: list[Problem] = field(default_factory=list[Problem])
    sound: set[str] = field(default_factory=set[str])
    tokens: int = 0
    documents: int = 0
    trusted: list[Shard] = field(default_factory=list[Shard])
    coverage: list[int | None] = field(default_factory=list[int | None])


def join_findings(manifest: Manifest, shards: Sequence[Shard], findings: Sequence[ShardFindings]) -> JoinedFindings:
    """Join the findings of all shards, in order, and check the mix."""
    joined = JoinedFindings()
    for found in findings:
        joined.problems += found.problems
        joined.sound.update(found.sound)
    longest: Counter[str] = Counter()
    for shard, found in zip(shards, findings, strict=True):
        contents = found.contents
        joined.problems += contents.problems
        joined.tokens += contents.tokens
        joined.documents += contents.documents
        for source, tokens in contents.longest.items():
            longest[source] = max(longest[source], tokens)
        if contents.table_sound:
            joined.trusted.append(shard)
            joined.coverage.append(contents.coverage)
    if len(joined.trusted) == len(shards):
        # If a table is missing, the longest document is unknown, and every share would look wrong.
        joined.problems += check_mix_shares(manifest, longest)
    return joined
