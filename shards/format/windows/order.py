"""The order of windows over a set's shards, a pure function of the window number.

A window is seq_len + 1 tokens of one shard; its last token is the first of the next, so every token but a few at a
shard's edges is a target once an epoch. Each epoch visits the shards in a permuted order, and inside a shard its
windows in a permuted order. Windows of two shards do not mix, and documents stay where they are in their shard. Every
shard of a built set holds documents of the whole corpus, or of its phase, in random order already, so nothing is lost
by finishing one shard before the next.

Each epoch cuts a shard at another offset, for which it gives up one window of the shard. shards/FORMAT.md states the
order. It may not change under its number, because checkpoints and states count windows.

In a set with phases each epoch takes the phases in order, and permutes the shards of each. A shard has one phase and a
window is in one shard, so the order crosses from one phase to the next between two windows.

`WindowOrder` maps a global window number to (epoch, shard, first token) from the manifest's token counts alone. The
number of windows consumed is therefore all the state a training run has of its data: resume at any number, with any
batch size, and the same windows follow. `shards.trace.locate` finds the documents of a window.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import PCG64, SeedSequence

from shards.errors import plural
from shards.format.arrays import Int64s, UInt64s
from shards.format.shard import Shard

ORDER_VERSION = 2
"""The version of the order, which states and checkpoints name; a `CheckpointState` by its own version."""

KEPT_STARTS = 1 << 23
"""Windows of recent visits whose places are kept, 8 bytes each: a random sampler comes back to every shard, and to
permute the windows of a shard of 100 million tokens takes milliseconds."""


GOLDEN_STEP = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: multiples of it, modulo 2^64, lie evenly, however many there are."""


def seeded_numbers(size: int, *key: int) -> UInt64s:
    """Return `size` random numbers of 64 bits for the windows' order, that depend on `key` alone, uint64.

    Raw PCG64 output: numpy promises that stream for all versions, unlike what `Generator` makes of it.

    Args:
        size: how many.
        key: numbers in [0, 2**32).
    """
    # SeedSequence pads with zeros, so (1, 2) and (1, 2, 0) would be the same key; the length makes them differ.
    return np.asarray(PCG64(SeedSequence([len(key), *key])).random_raw(size), dtype=np.uint64)


def seeded_permutation(size: int, *key: int) -> Int64s:
    """Return an order of range(size), as of windows, by `key` alone, int64: a stable argsort of `seeded_numbers`."""
    return np.argsort(seeded_numbers(size, *key), kind="stable")


@dataclass(frozen=True)
class Visit:
    """The visit to one shard in one epoch: the windows [first, first + windows) are the shard's windows, permuted."""

    epoch: int
    shard: int
    first: int
    windows: int


@dataclass(frozen=True)
class Window:
    """The tokens [start, stop) of a shard; all but the first are predicted. One window, or a piece of a row."""

    epoch: int
    shard: int
    start: int
    """In a piece of the shard's first document -1: the EOS before it is in no shard."""
    stop: int
    at: int = 0
    """The slot of the sample in which the second token is predicted."""


class Pieces(NamedTuple):
    """What some samples of a visit hold, sample by sample; int64 `(pieces,)`."""

    rows: Int64s
    """Which of the samples each is in."""
    starts: Int64s
    """The token of the shard before its first target."""
    slots: Int64s
    """How many tokens it predicts."""
    at: Int64s
    """Its first slot in the sample."""
    documents: Int64s
    """Of packed rows, the number of its document in the shard."""
    left: Int64s
    """Of packed rows, the slots of its document after it."""


@dataclass(frozen=True)
class PhaseWindows:
    """A phase in the first epoch: the windows [first, stop)."""

    name: str
    first: int
    stop: int
    longest: int
    """Tokens of its longest shard."""


class WindowOrder:
    """The order of windows over shards of `shard_tokens` tokens. Depends on its arguments alone.

    Attributes:
        windows: windows of an epoch in each shard, int64 `(shards,)`.
        per_epoch: windows in one epoch.
        short_shards: indices of the shards that are too short for one window; they are never visited.
        cropped: tokens that an epoch does not predict: those of each shard before and after the targets of its windows.
        phases: the phases in order; none in a set without.
    """

    unit = "window"
    """What a sample is called."""

    def __init__(
        self,
        shard_tokens: Sequence[int],
        *,
        seq_len: int,
        seed: int,
        phases: Sequence[str] = (),
        rows: Sequence[int] | None = None,
    ):
        """Plan the order of windows.

        Args:
            shard_tokens: tokens of each shard.
            seq_len: tokens that a window predicts.
            seed: decides the permutations.
            phases: the phase of each shard, equal ones in a row; empty if the set has no phases.
            rows: how many samples an epoch has in each shard, if they are no windows.
        """
        tokens = np.asarray(shard_tokens, dtype=np.int64)
        self.seq_len, self.seed = seq_len, seed
        self.windows = np.maximum(tokens - 1, 0) // seq_len
        # One window fewer leaves room for every offset up to seq_len; a shard's only window stays.
        self.windows -= self.windows > 1
        if rows is not None:
            self.windows = np.asarray(rows, dtype=np.int64)
        self._offsets = np.clip(tokens - self.windows * seq_len, 1, seq_len)
        self.per_epoch = int(self.windows.sum())
        self.short_shards = np.flatnonzero(self.windows == 0).tolist()
        self.cropped = int(tokens.sum()) - self.per_epoch * seq_len
        names = list(dict.fromkeys(phases))
        self._phase_of = np.array([names.index(name) for name in phases] or [0] * len(tokens), np.int64)
        ends = np.cumsum(np.bincount(self._phase_of, self.windows, len(names))).astype(np.int64).tolist()
        self.phases = tuple(
            PhaseWindows(name, first, stop, int(tokens[self._phase_of == number].max()))
            for number, (name, first, stop) in enumerate(zip(names, [0, *ends], ends, strict=False))
        )
        self._epoch: tuple[int, Int64s, Int64s] | None = None
        self._starts: OrderedDict[Visit, Int64s] = OrderedDict()

    def describe_empty_phases(self) -> list[str]:
        """Return a fault for each phase that has no window: its mix would be left out."""
        expected = f"expected at least seq_len + 1 = {self.seq_len + 1}. Lower seq_len, or build longer shards"
        return [
            f"no shard of phase {phase.name!r} of the mix has a window: its longest has "
            f"{plural(phase.longest, 'token')}; {expected}."
            for phase in self.phases
            if phase.first == phase.stop
        ]

    def describe_short_shards(self, shards: Sequence[Shard]) -> str:
        """Return what is said of shards that are too short for a window; nothing if there are none."""
        names = ", ".join(shards[index].name for index in self.short_shards[:5])
        count = f"{len(self.short_shards)} of {plural(len(shards), 'shard')}"
        found = f"shorter than one window of {self.seq_len} + 1 tokens, and not read: {count} ({names})"
        return found if names else ""

    def visit(self, window: int) -> Visit:
        """Return the visit of a shard in the order that contains a window."""
        epoch, position = divmod(window, self.per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            order = seeded_permutation(len(self.windows), self.seed, epoch)
            order = order[np.argsort(self._phase_of[order], kind="stable")]
            self._epoch = epoch, order, np.cumsum(self.windows[order])
        _, order, ends = self._epoch
        # side="right" also steps over shards without windows, whose end equals the one before.
        turn = int(np.searchsorted(ends, position, side="right"))
        shard = int(order[turn])
        windows = int(self.windows[shard])
        return Visit(epoch, shard, epoch * self.per_epoch + int(ends[turn]) - windows, windows)

    def group_by_visit(self, windows: Int64s) -> Iterator[tuple[Visit, Int64s, Int64s]]:
        """Yield windows of any numbers visit by visit: their indices in `windows`, and their places in the shard, which
        are their first tokens (of packed rows, their numbers in the plan)."""
        order = np.argsort(windows, kind="stable")
        numbers = windows[order]
        begin = 0
        while begin < len(numbers):
            visit = self.visit(int(numbers[begin]))
            end = int(np.searchsorted(numbers, visit.first + visit.windows))
            places = numbers[begin:end] - visit.first
            yield visit, order[begin:end], self._find_places(visit)[places]
            begin = end

    def find_offsets(self, shard: int, epochs: Iterable[int]) -> list[int]:
        """Return the first token of a shard's earliest window in each of the epochs."""
        count = int(self._offsets[shard])
        begin = int(seeded_numbers(1, self.seed, shard, 0, 0)[0])  # no other key has four numbers
        return [((begin + epoch * GOLDEN_STEP) % (1 << 64) * count) >> 64 for epoch in epochs]

    def list_windows(self, visit: Visit, places: Int64s) -> list[tuple[int, Window]]:
        """Return the windows, or the pieces of packed rows, at some places of a visit, each with its index there."""
        found = self.find_pieces(visit, places)
        columns = (found.rows, found.starts, found.starts + found.slots + 1, found.at)
        return [
            (row, Window(visit.epoch, visit.shard, start, stop, at))
            for row, start, stop, at in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def find_pieces(self, visit: Visit, places: Int64s) -> Pieces:
        """Return what the samples at some places of a visit hold: a window is one piece."""
        zeros = 0 * places
        return Pieces(np.arange(len(places)), places, zeros + self.seq_len, zeros, zeros, zeros)

    def _find_places(self, visit: Visit) -> Int64s:
        """Return the places of a visit's windows in order, int64; those of recent visits are kept."""
        known = self._starts.pop(visit, None)
        if known is None:
            while self._starts and sum(map(len, self._starts.values())) + visit.windows > KEPT_STARTS:
                self._starts.popitem(last=False)
            known = self._place(visit, seeded_permutation(visit.windows, self.seed, visit.epoch, visit.shard))
        self._starts[visit] = known  # the last, as the most recent
        return known

    def _place(self, visit: Visit, numbers: Int64s) -> Int64s:
        """Return the places of a visit's windows by their numbers in the shard."""
        return self.find_offsets(visit.shard, [visit.epoch])[0] + numbers * self.seq_len
