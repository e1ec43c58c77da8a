"""`TokenStream`: the samples of a shard set in order, shared out to ranks, resumed anywhere from one number.

The state is the number of samples that all ranks together have consumed, counted from the start of the order. Rank r of
w reads the samples `state + r`, `state + r + w`, ..., one by one, whatever the batch. So after every rank has taken
equally many, the samples consumed are again the first ones of the order, and another run goes on from there with any
number of ranks, workers, and samples in a batch: nothing has to divide anything.

Without workers (`num_workers=0`), `state_dict()` is exact: samples are made when they are asked for, and shards are
decoded ahead by a thread. A DataLoader's workers run ahead of its consumer, and nothing tells this object what was
received: `state_dict(received=...)` does.

Workers: batches that the stream makes (`batch_size=`) are dealt out to the workers, whole and in order. A stream of
single samples cannot know which of them will be a batch, so the first worker reads them all and the others end at
once; dealing samples out in turn would take samples into a batch that are far apart, and no number could tell which.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from shards.errors import InputError, plural
from shards.format.manifest import Split
from shards.format.reader import ShardSet
from shards.format.windows.packed import RowKind
from shards.stores.open import AnyPath
from shards.torch.windows import DEFAULT_SEED, FieldName, Labels, Sample, TokenWindows, is_integer

UnevenEnd = Literal["keep", "drop"]


class StateError(InputError):
    """A state with which a stream cannot go on: it is damaged, or of another order or number of samples."""


class TokenStream(IterableDataset[Sample]):
    """The samples [0, n) of a set's order for one rank. See `__init__`.

    An iteration begins at the first sample or, once after `load_state_dict`, where that state ends; it ends after the
    last sample. So for three epochs give `epochs=3`, and iterate once.
    """

    def __init__(
        self,
        shard_set: ShardSet | AnyPath,
        *,
        seq_len: int,
        split: Split = "train",
        seed: int = DEFAULT_SEED,
        rank: int | None = None,
        world_size: int | None = None,
        batch_size: int | None = None,
        uneven_end: UnevenEnd = "keep",
        epochs: int | None = None,
        samples: int | None = None,
        rows: RowKind = "windows",
        labels: Labels = "next",
        fields: Sequence[FieldName] = (),
        cache: AnyPath | None = None,
        cache_limit: int | None = None,
    ):
        """Open a set's stream; no tokens are read yet.

        Args:
            shard_set: as for `TokenWindows`, and so are `seq_len`, `split`, `seed`, `epochs`, `samples` (of all ranks),
                `rows`, `labels`, `fields`, `cache` and `cache_limit`.
            rank: this rank's number, from 0; 0 of 1 if something else deals samples out to ranks, as Accelerate does.
                May be left out together with `world_size` if there is one rank.
            world_size: the number of ranks.
            batch_size: samples of this rank in a batch that the stream makes, for `DataLoader(stream,
                batch_size=None)`: faster, and spread over workers. When None, it yields single samples, for
                `DataLoader(stream, batch_size=8)`.
            uneven_end: what happens if the samples left at the end are not a whole batch (or, without `batch_size`, a
                sample) for every rank. "keep": none is lost, and the last ranks end earlier or with a smaller batch,
                for which collective operations wait forever. "drop": all ranks end after equally many.

        Raises:
            InputError: an argument cannot be used.
            ShardSetError: there is no set at the place, or a file of it is missing or has another size.
        """
        self.rank, self.world_size = _check(rank, world_size, batch_size, uneven_end)
        self.batch_size, self.uneven_end = None if batch_size is None else int(batch_size), uneven_end
        self.windows = TokenWindows(
            shard_set,
            seq_len=seq_len,
            split=split,
            seed=seed,
            epochs=epochs,
            samples=samples,
            rows=rows,
            labels=labels,
            fields=fields,
            cache=cache,
            cache_limit=cache_limit,
        )
        self._begin = self._next = 0
        """Where the last iteration began, and where the next batch of this process begins."""
        self._loaded: int | None = None
        """Where the next iteration begins, after `load_state_dict`."""
        self._worker_iterations = torch.zeros((), dtype=torch.int64).share_memory_()
        """Iterations begun by workers since the last `load_state_dict`, in memory that they share with this process."""
        self._loads, self._all_loads = 0, torch.zeros((), dtype=torch.int64).share_memory_()
        """How often a state was loaded in this process: as this copy of the stream knows, and in shared memory."""

    def __len__(self) -> int:
        """Return the samples, or batches, for this rank from where its iteration began or will begin."""
        # What is loaded, but not yet iterated, counts.
        begin = self._begin if self._loaded is None else self._loaded
        return -(-self._count_own(begin) // (self.batch_size or 1))

    def __iter__(self) -> Iterator[Sample]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        begin = self._loaded or 0
        if info is not None and self._all_loads.item() != self._loads:
            message = "load_state_dict was called after the DataLoader's workers had started, which would not follow it"
            return _refuse(InputError(f"{message}. Call it before iter(loader), and without persistent_workers."))
        if info is not None and worker == 0:
            if begin and self._worker_iterations.item():
                raise InputError(
                    f"the workers of an earlier iteration have read on from sample {begin}; this one would read the "
                    "same again. Call load_state_dict before each iteration; to begin at the first sample, with "
                    "samples = 0 in the state."
                )
            self._worker_iterations += 1
        # From here on this iteration has its place; the next one begins at the first sample.
        self._loaded = None
        self._begin, end = begin, self._end(begin)
        readers = 1 if self.batch_size is None else workers
        self._next = end if worker >= readers else min(begin + worker * self._stride, end)
        return self._iter_from(self._next, end, readers)

    def state_dict(self, *, received: int | None = None) -> dict[str, Any]:
        """Return how many samples of the stream all ranks have consumed, and the order's identity, as plain JSON.

        It is the same on every rank if all have taken equally many. If they end unevenly, rank 0's is right.

        Args:
            received: how many samples this rank's loop has received in this iteration. Needed if the workers of a
                DataLoader read the stream.

        Raises:
            InputError: workers have read the stream, and `received` is not given, or is more than this rank gets.
        """
        if received is not None:
            begin = self._begin if self._loaded is None else self._loaded
            most = self._count_own(begin)
            if not is_integer(received) or not 0 <= received <= most:
                raise InputError(
                    f"received = {received!r}: expected an integer from 0 to {most}, the samples of this rank in this "
                    "iteration. Count them from where it began."
                )
            samples = min(begin + int(received) * self.world_size, len(self.windows))
        # Workers run ahead: this copy does not know how far.
        elif get_worker_info() is not None or self._worker_iterations.item():
            raise InputError(
                "a DataLoader's workers read this stream, ahead of what your loop has received. Give received= "
                "(samples that this rank has received), or use num_workers=0."
            )
        else:
            samples = self._next if self._loaded is None else self._loaded
        return {"samples": samples, **self.windows.identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration begin where a state ends.

        Args:
            state: from `state_dict` of a stream with any rank, world size, batch and workers.

        Raises:
            StateError: the state is not of a stream, or is damaged; it is of another set, split, `seq_len`, seed or
                version of the order, or lies outside. Nothing has changed then.
        """
        # Everything is checked before anything changes.
        given: Any = state
        found: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        problems: list[str] = []
        if (rows := found.get("rows", "windows")) != self.windows.rows:
            problems.append(
                f"the state's rows is {rows!r:.80}; this stream has {self.windows.rows!r}. A run keeps its rows: use "
                "those that the state was saved with, or begin at the first sample."
            )
        for name, value in ({} if problems else self.windows.identity).items():
            other = found.get(name)
            if not (isinstance(other, str) if isinstance(value, str) else is_integer(other)) or other != value:
                remedy = "Use what the state was saved with, unchanged"
                if name == "order_version":
                    remedy = "Go on with the Tokenmill that saved it, or begin at the first sample"
                problems.append(f"the state's {name} is {other!r:.80}; this stream has {value!r}. {remedy}.")
        samples: Any = found.get("samples")
        total = len(self.windows)
        if not is_integer(samples) or not 0 <= samples <= total:
            problems.append(
                f"the state's samples is {samples!r:.80}; expected an integer from 0 to {total}. Give what state_dict "
                "returned, unchanged, and as many epochs or samples as before."
            )
        if problems:
            raise StateError(problems)
        self._loaded = int(samples)
        self._worker_iterations.zero_()
        self._loads += 1
        self._all_loads.fill_(self._loads)

    def close(self) -> None:
        """Stop the thread that decodes ahead, and free the shards."""
        self.windows.close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Give a copy of the stream counters that it shares with its own workers; only a worker has its parent's."""
        self.__dict__.update(state)
        self._worker_iterations.share_memory_()
        self._all_loads.share_memory_()

    def _end(self, begin: int) -> int:
        """Return one past the last sample of an iteration."""
        left = len(self.windows) - begin
        return begin + (left // self._stride * self._stride if self.uneven_end == "drop" else left)

    def _count_own(self, begin: int) -> int:
        """Return how many samples this rank gets in an iteration."""
        return max(0, -(-(self._end(begin) - begin - self.rank) // self.world_size))

    @property
    def _stride(self) -> int:
        """Samples of a batch on all ranks."""
        return self.world_size * (self.batch_size or 1)

    def _iter_from(self, first: int, end: int, readers: int) -> Iterator[Sample]:
        for begin in range(first, end, self._stride * readers):
            # The state moves on before the batch is handed out, so that the caller may save once it has the batch.
            self._next = min(begin + self._stride * readers, end)
            numbers = np.arange(begin + self.rank, min(begin + self._stride, end), self.world_size)
            if len(numbers):
                yield self.windows.read(numbers) if self.batch_size else self.windows[int(numbers[0])]


def _refuse(error: InputError) -> Iterator[Sample]:
    """Raise an error at the stream's first sample: if `iter` raises it, a persistent worker ends and keeps it."""
    raise error
    yield


def _check(rank: int | None, world_size: int | None, batch_size: int | None, uneven_end: str) -> tuple[int, int]:
    """Refuse arguments of a stream that cannot be used; return the rank and the number of ranks."""
    problems: list[str] = []
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if rank is None and world_size is None:
        rank, world_size = 0, 1
        if ranks > 1:
            problems.append(
                f"rank, world_size: not given, and this is one of {plural(ranks, 'process')} (WORLD_SIZE), which "
                "would all read the same. Give both, or 0 and 1 if something else deals samples out to ranks, as "
                "Accelerate does."
            )
    elif not (is_integer(rank) and is_integer(world_size) and 0 <= rank < world_size):
        found = f"rank = {rank!r} and world_size = {world_size!r}"
        problems.append(f"{found}: expected two integers, 0 <= rank < world_size.")
    if batch_size is not None and (not is_integer(batch_size) or batch_size < 1):
        problems.append(f"batch_size = {batch_size!r}: expected 1 or more, an integer, or None for single samples.")
    if uneven_end not in get_args(UnevenEnd):
        problems.append(f"uneven_end = {uneven_end!r}: expected 'keep' or 'drop'.")
    if problems:
        raise InputError(problems)
    return int(rank or 0), int(world_size or 1)
