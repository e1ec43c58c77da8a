"""Which iteration a DataLoader's workers are in, in memory that they share with the process of the loop.

A DataLoader starts new workers for each iteration, with copies of the stream as it was when it was loaded, and tells
the stream nothing. But all workers of an iteration have one base seed, which the DataLoader draws for each iteration.
So the first iteration after a load is the one with the base seed that a worker has noted first.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from typing import Protocol, cast

import torch

from shards.errors import InputError

NONE = -1
"""No base seed, and no known place: both are from 0."""


class WorkerInfo(Protocol):
    """The information that torch gives a worker about itself."""

    @property
    def id(self) -> int: ...
    @property
    def seed(self) -> int: ...


class WorkerIterations:
    """The iterations that workers have begun since the last `load`. A worker's copy has the same memory."""

    def __init__(self):
        # The base seed of the first iteration, how often its first worker began, the first sample of the last one;
        # the place that was loaded last, and how many were.
        self._shared = torch.tensor([NONE, 0, NONE, 0, 0]).share_memory_()
        self._seen = 0
        """Of those, how many this worker has seen."""

    def load(self, samples: int) -> None:
        """Let the next iteration begin at a sample, those after it at the first, and forget all iterations."""
        self._shared.copy_(torch.tensor([NONE, 0, NONE, samples, self._read(4) + 1]))

    @property
    def begun(self) -> bool:
        """Whether workers have begun an iteration."""
        return self._read(0) != NONE

    @property
    def begin(self) -> int | None:
        """The first sample of the last iteration; None if there is none, or its workers have places of their own."""
        begin = self._read(2)
        return None if begin == NONE else begin

    def start(self, info: WorkerInfo, loaded: int | None, *, own_place: bool) -> int:
        """Note that a worker begins an iteration; return its first sample, the same one in all workers.

        Args:
            info: the worker.
            loaded: where the first iteration begins; None if this worker has begun it, and goes on to the next one.
            own_place: whether `loaded` is the place of this worker alone.

        Raises:
            InputError: this iteration cannot be told from the first, because the seed was set again between them.
        """
        seed = info.seed - info.id
        if loaded is None and self._seen != self._read(4):  # a worker that lives on, and a load in the loop's process
            loaded = self._read(3)
        self._seen = self._read(4)
        if not self.begun:
            self._shared[0] = seed
        is_first = self._read(0) == seed
        begin = (loaded or 0) if own_place or is_first else 0
        if info.id == 0:
            if begin and not own_place and self._read(1):
                found = f"two iterations after load_state_dict({begin} samples) have the same random state"
                expected = "expected two, by which workers know that the second begins at the first sample"
                raise InputError(f"{found}; {expected}. Set the seed once, or call load_state_dict before each.")
            self._shared[1] += 1
            self._shared[2] = NONE if own_place else begin
        return begin

    def _read(self, place: int) -> int:
        return cast("int", self._shared[place].item())
