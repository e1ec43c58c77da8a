"""Check the mix of a manifest, and its phases, against the weights and against the shards.

A set without phases has one mix, whose shares follow from the sources' weights. In a set with phases each phase has a
mix of its own, and the shares of the set follow from these.
"""

from __future__ import annotations

import itertools
from collections import Counter

from shards.errors import plural
from shards.format.manifest import Manifest, MixEntry, PhaseEntry, ShardEntry, SourceCounts
from shards.validation.sums import NOTHING, Faults, add_counts, add_sources, show_counts

SHARE_PRECISION = 1e-9
"""Shares are 64-bit floats. Two ways to compute the same share differ by less than this."""


def check_mix(manifest: Manifest) -> Faults:
    """Check the mix: the weights, and the mix's rows against weights or phases and the training split."""
    train = manifest.splits.get("train")
    weights = {source.name: source.weight for source in manifest.sources}
    for name, weight in weights.items():
        if weight <= 0:
            yield "manifest_invalid", f"source {name!r} has the weight {weight}; expected more than 0"
    # The share of a source in the set: by its weight, or by its shares of all phases.
    weight_sum = sum(weights.values()) or 1.0
    shares = {name: weight / weight_sum for name, weight in weights.items()}
    if manifest.phases:
        shares = dict.fromkeys(weights, 0.0)
        for phase in manifest.phases:
            for row in phase.mix:
                shares[row.source] = shares.get(row.source, 0.0) + phase.share * row.requested
    sources = train.sources if train else {}
    yield from _check_rows(manifest.mix, "mix", sources, train.requested_tokens if train else 0, shares)


def check_phases(manifest: Manifest) -> Faults:
    """Check a manifest's phases against each other, against the order of the shards, and each against its shards."""
    names = [phase.name for phase in manifest.phases]
    train = [shard for shard in manifest.shards if shard.split == "train"]
    for name, count in Counter(names).items():
        if count > 1:
            yield "totals_mismatch", f"phase {name!r} is listed {plural(count, 'time')}"
    # Shards of one phase follow each other, in the order of the phases.
    runs = [name for name, _ in itertools.groupby(shard.phase for shard in train)]
    if runs != (names or [None] * bool(train)):
        expected = f"{names}, one after the other" if names else "none"
        yield "totals_mismatch", f"the training shards are of the phases {runs}; expected {expected}"
    for shard in manifest.shards:
        if shard.split != "train" and shard.phase is not None:
            message = f"{shard.name} is of phase {shard.phase!r}; expected none outside the training split"
            yield "totals_mismatch", message
    if not names:
        return
    shares = [phase.share for phase in manifest.phases]
    if abs(sum(shares) - 1) > SHARE_PRECISION or min(shares) <= 0:
        message = f"the shares of the phases are {shares}; expected numbers above 0 that add up to 1"
        yield "totals_mismatch", message
    requested = manifest.splits["train"].requested_tokens if "train" in manifest.splits else 0
    if (found := sum(phase.requested_tokens for phase in manifest.phases)) != requested:
        message = f"the phases' requested_tokens add up to {found}; the training split requests {requested}"
        yield "totals_mismatch", message
    for phase in manifest.phases:
        yield from _check_phase(manifest, phase, train, requested)


def _check_phase(manifest: Manifest, phase: PhaseEntry, train: list[ShardEntry], requested: int) -> Faults:
    where = f"phase {phase.name!r}"
    expected = phase.share * requested
    if abs(phase.requested_tokens - expected) > 1 + requested * SHARE_PRECISION:
        message = f"{where}: requested_tokens {phase.requested_tokens} of {requested}; expected {expected:.0f}"
        yield "totals_mismatch", message
    by_source = add_sources(shard for shard in train if shard.phase == phase.name)
    total = add_counts(by_source.values())
    if (phase.tokens, phase.documents) != (total.tokens, total.documents):
        said, held = (show_counts(one.tokens, one.documents) for one in (phase, total))
        yield "totals_mismatch", f"{where}: {said}; its shards add up to {held}"
    names = [source.name for source in manifest.sources]
    if (listed := [row.source for row in phase.mix]) != names:
        yield "manifest_invalid", f"{where} lists {listed}; expected the sources in order, {names}"
    yield from _check_rows(phase.mix, where, by_source, phase.requested_tokens, None)


def _check_rows(
    rows: list[MixEntry],
    what: str,
    sources: dict[str, SourceCounts],
    requested_sum: int,
    shares: dict[str, float] | None,
) -> Faults:
    """Check the rows of the mix, or of one phase.

    Args:
        rows: one per source.
        what: the place for messages.
        sources: what the training split, or the phase, holds of each source.
        requested_sum: tokens requested of all sources.
        shares: the share that each source must have; None if the rows alone say it.
    """
    total = sum(counts.tokens for counts in sources.values())
    share_sum = sum(row.requested for row in rows)
    if rows and abs(share_sum - 1) > SHARE_PRECISION:
        place = "" if what == "mix" else f"{what}: "
        yield "totals_mismatch", f"{place}requested shares add up to {share_sum!r}; expected 1"
    for row in rows:
        where = f"{what}, source {row.source!r}"
        held = sources.get(row.source, NOTHING).tokens
        if row.achieved_tokens != held:
            place = "the training split holds" if what == "mix" else "its shards hold"
            yield "totals_mismatch", f"{where}: achieved_tokens {row.achieved_tokens}; {place} {held}"
        achieved = held / total if total else 0.0
        if abs(row.achieved - achieved) > SHARE_PRECISION:
            yield "totals_mismatch", f"{where}: achieved {row.achieved!r}; expected {achieved!r}"
        share = row.requested if shares is None else shares.get(row.source, 0.0)
        if abs(row.requested - share) > SHARE_PRECISION:
            yield "totals_mismatch", f"{where}: requested {row.requested!r}; its weight's share is {share!r}"
        # Each target is rounded down, so their sum is too small by less than one token for each source.
        slack = len(rows) + requested_sum * SHARE_PRECISION
        expected = row.requested * requested_sum
        if abs(row.requested_tokens - expected) > slack:
            message = f"{where}: requested_tokens {row.requested_tokens} of {requested_sum}; expected {expected:.0f}"
            yield "mix_share", message
