"""The phases of a mix in a plan: tokens, shards, and the share of each source."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.recipe.shares import Demand


@dataclass(frozen=True, slots=True)
class PhaseEstimate:
    """One phase of the mix: its training tokens and shards, and the shares of the sources in it, by name."""

    name: str
    share: float
    tokens: int
    shards: int
    sources: dict[str, float]


def estimate_phases(demand: Demand, train_tokens: int) -> tuple[PhaseEstimate, ...]:
    """Return the phases of a set of this many training tokens; none if the recipe has none."""
    sizes = zip(demand.phases, demand.phase_tokens(train_tokens), demand.phase_shards(train_tokens), strict=True)
    names = [source.name for source in demand.recipe.sources]
    return tuple(
        PhaseEstimate(
            phase.name,
            float(phase.share),
            tokens,
            shards,
            dict(zip(names, map(float, phase.shares.fractions), strict=True)),
        )
        for phase, tokens, shards in sizes
        if phase.name is not None
    )
