"""The result of a mix as plain data: the slices of each shard, and the totals of each source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.encode.run import HashKey
from pipeline.mix.block_lists import BlockListUse


@dataclass(frozen=True, slots=True)
class Slice:
    """A half-open range of hashes of one source, on its n-th pass (`epoch`, from 0)."""

    source: int
    epoch: int
    start: HashKey
    stop: HashKey


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The slices that make up one shard."""

    split: str
    index: int
    slices: tuple[Slice, ...]
    phase: str | None = None
    """The phase of the mix; None for validation, or if the recipe has no phases."""


@dataclass(frozen=True, slots=True)
class SourceTotals:
    """The size of one source after deduplication, and what the mix requests of it."""

    tokens: int
    documents: int
    dropped: dict[str, int]
    requested_tokens: int
    """Training tokens requested."""
    epochs: int
    """How often the most repeated training document occurs."""


@dataclass(frozen=True, slots=True)
class MixPlan:
    """The whole mix: one shard plan each, and the sources' totals."""

    shards: tuple[ShardPlan, ...]
    sources: tuple[SourceTotals, ...]
    train_tokens: int
    """Training tokens requested, after `when_short` was applied."""
    notes: tuple[str, ...]
    """Messages for the user, such as that the set was shrunk or a source repeated."""
    block_lists: tuple[BlockListUse, ...] = ()
    """How many hashes of each of the recipe's block lists were found."""

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values. A set without phases has no key for them, as in earlier versions."""
        data = asdict(self)
        for shard in data["shards"]:
            if shard["phase"] is None:
                del shard["phase"]
        return data


def plan_from_dict(data: dict[str, Any]) -> MixPlan:
    """Return the mix plan that `to_dict` wrote."""

    def slice_from(item: dict[str, Any]) -> Slice:
        return Slice(item["source"], item["epoch"], tuple(item["start"]), tuple(item["stop"]))

    return MixPlan(
        shards=tuple(
            ShardPlan(
                shard["split"],
                shard["index"],
                tuple(slice_from(item) for item in shard["slices"]),
                shard.get("phase"),
            )
            for shard in data["shards"]
        ),
        sources=tuple(SourceTotals(**totals) for totals in data["sources"]),
        train_tokens=data["train_tokens"],
        notes=tuple(data["notes"]),
        block_lists=tuple(BlockListUse(**found) for found in data.get("block_lists", [])),
    )
