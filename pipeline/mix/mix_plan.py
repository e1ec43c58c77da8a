"""The result of a mix as plain data: the slices of each shard, and the totals of each source."""

from dataclasses import dataclass

from pipeline.encode.run import HashKey
from shards.format.manifest import BlockListEntry, EvalTaskEntry


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
class MixPlan:
    """The whole mix: one shard plan each, and what it takes of each source."""

    shards: tuple[ShardPlan, ...]
    requested_tokens: tuple[int, ...]
    """Training tokens requested of each source."""
    epochs: tuple[int, ...]
    """How often the most repeated training document of each source occurs."""
    train_tokens: int
    """Training tokens requested, after `when_short` was applied."""
    weights: tuple[float, ...]
    """Of the sources: the recipe's, or without these the tokens that each has for training."""
    notes: tuple[str, ...]
    """Messages for the user, such as that the set was shrunk or a source repeated."""
    block_lists: tuple[BlockListEntry, ...] = ()
    """How many hashes of each of the recipe's block lists were found."""
    eval_tasks: tuple[EvalTaskEntry, ...] = ()
    """Which items of each evaluation set with a `task` the training split holds."""
