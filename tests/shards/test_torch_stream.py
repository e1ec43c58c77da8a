"""`TokenStream`: the union of what ranks and workers read over interruptions is the order, whole, and nothing twice."""

import gc
import itertools
import json
import pickle
import random
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader
from torch.utils.data import _utils as torch_data

from shards import ShardSet
from shards.errors import InputError
from shards.format.writer import write_token_set
from shards.torch import TokenStream, TokenWindows
from tests.support.token_sets import count_up

SEQ_LEN = 4
SIZES = (401, 700, 203)
N = sum((size - 1) // SEQ_LEN - 1 for size in SIZES)


@pytest.fixture(autouse=True)
def _workers_end_soon(monkeypatch) -> None:
    """Let torch wait for a worker to end for less than its 5 s."""
    monkeypatch.setattr(torch_data, "MP_STATUS_CHECK_INTERVAL", 0.2)


@pytest.fixture(scope="module")
def small_set(tmp_path_factory) -> ShardSet:
    """A set of three small train shards and a val shard. Read only."""
    firsts = (0, *itertools.accumulate(SIZES))
    train = [count_up(size, first=first, document_tokens=1_000) for size, first in zip(SIZES, firsts, strict=False)]
    return write_token_set(tmp_path_factory.mktemp("sets") / "s", {"train": train, "val": [count_up(90)]})


@pytest.fixture(scope="module")
def numbers(small_set) -> dict[tuple[int, ...], int]:
    """The number of each sample of the first epoch, by its tokens, which occur once."""
    windows = TokenWindows(small_set, seq_len=SEQ_LEN)
    found = {tuple(ids): number for number, ids in enumerate(windows.read(range(N))["input_ids"].tolist())}
    assert len(found) == N == len(windows)
    return found


@dataclass(frozen=True)
class Setup:
    """How a part of a run reads: `batch` is made by the stream, or of single samples by the loader."""

    ranks: int
    workers: int
    batch: int
    made_by: str = "stream"


def open_stream(shard_set: ShardSet, setup: Setup, rank: int, **more: Any) -> TokenStream:
    batch = {"batch_size": setup.batch} if setup.made_by == "stream" else {}
    return TokenStream(shard_set, seq_len=SEQ_LEN, rank=rank, world_size=setup.ranks, **batch, **more)


def read_part(
    shard_set: ShardSet, setup: Setup, state: dict[str, Any] | None, steps: int | None, **more: Any
) -> tuple[list[list[list[int]]], list[Any]]:
    """Let all ranks take steps; return their samples and their states."""
    taken: list[list[list[int]]] = []
    states: list[Any] = []
    for rank in range(setup.ranks):
        stream = open_stream(shard_set, setup, rank, **more)
        if state is not None:
            stream.load_state_dict(state)
        left = len(stream)
        rows: list[list[int]] = []
        loader = DataLoader(
            stream,
            batch_size=None if setup.made_by == "stream" else setup.batch,
            num_workers=setup.workers,
            multiprocessing_context="fork" if setup.workers else None,
        )
        for part in itertools.islice(loader, steps):
            rows += part["input_ids"].tolist()
        assert steps is not None or left == -(-len(rows) // (setup.batch if setup.made_by == "stream" else 1))
        states.append(stream.state_dict(received=len(rows) if setup.workers else None))
        taken.append(rows)
    return taken, states


SETUPS = [
    Setup(ranks, workers, batch, made_by)
    for ranks, workers, (batch, made_by) in itertools.product(
        (1, 2, 3, 5), (0, 1, 2, 4), ((1, "stream"), (3, "stream"), (7, "stream"), (4, "loader"))
    )
]
"""64 combinations; each chain of eight goes through eight of them."""


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("chain", range(2))
def test_the_union_over_interruptions_is_the_order(small_set, numbers, chain):
    setups = random.Random(7).sample(SETUPS, len(SETUPS))[chain * 8 : chain * 8 + 8]
    rng = random.Random(chain)
    state: dict[str, Any] | None = None
    read: list[int] = []
    for position, setup in enumerate(setups):
        last = position == len(setups) - 1
        steps = None if last else rng.randint(0, max(1, 80 // (setup.ranks * setup.batch)))
        taken, states = read_part(small_set, setup, state, steps)
        begin = 0 if state is None else state["samples"]
        # Each rank has its samples in the order, and they have no gap.
        for rank, rows in enumerate(taken):
            assert [numbers[tuple(row)] for row in rows] == list(range(begin + rank, N, setup.ranks))[: len(rows)]
        read += sorted(numbers[tuple(row)] for rows in taken for row in rows)
        # All ranks say the same; go on from any of them. Where ranks have ended, rank 0 knows.
        expected = len(read)
        if expected == N:
            states = states[:1]
        assert {found["samples"] for found in states} == {expected}
        state = rng.choice(states)
    assert read == list(range(N))


@pytest.mark.parametrize(("ranks", "batch"), [(1, 7), (2, 5), (3, None), (4, 8)])
def test_an_even_end_gives_all_ranks_equally_many(small_set, ranks, batch):
    counts: set[tuple[int, int]] = set()
    for rank in range(ranks):
        stream = TokenStream(
            small_set, seq_len=SEQ_LEN, rank=rank, world_size=ranks, batch_size=batch, uneven_end="drop"
        )
        shapes = [tuple(part["input_ids"].shape) for part in stream]
        assert len(shapes) == len(stream)
        assert set(shapes) == {(batch, SEQ_LEN) if batch else (SEQ_LEN,)}
        counts.add((len(shapes), stream.state_dict()["samples"]))
    stride = ranks * (batch or 1)
    assert counts == {(N // stride, N // stride * stride)}


# Real DataLoaders


def flatten(parts: list[Any], numbers: dict[tuple[int, ...], int]) -> list[int]:
    return [numbers[tuple(row)] for part in parts for row in part["input_ids"].tolist()]


def load(stream: TokenStream, **options: Any) -> DataLoader[Any]:
    """Return the loader whose two workers read a stream."""
    return DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context="fork", **options)


def test_a_dataloader_with_workers_needs_to_be_told(small_set, numbers):
    stream = open_stream(small_set, Setup(1, 2, 6), 0)
    loader = load(stream)
    assert flatten(list(itertools.islice(loader, 4)), numbers) == list(range(24))
    with pytest.raises(
        InputError, match=r"workers read this stream, ahead of what your loop has received. Give received="
    ):
        stream.state_dict()
    stream.load_state_dict(stream.state_dict(received=24))
    assert flatten(list(loader), numbers) == list(range(24, N))
    with pytest.raises(InputError, match=r"have read on from sample 24; this one would read the same again"):
        next(iter(loader))


@pytest.mark.parametrize("make_copy", [deepcopy, lambda stream: pickle.loads(pickle.dumps(stream))])
def test_a_copy_knows_what_its_own_workers_have_read(small_set, make_copy):
    """Not what the stream's workers have read that it is a copy of."""
    stream = open_stream(small_set, Setup(1, 2, 6), 0)
    other = make_copy(stream)
    list(load(other))
    with pytest.raises(InputError, match="workers read this stream, ahead of what your loop has received"):
        other.state_dict()
    assert stream.state_dict()["samples"] == 0


def test_a_state_loaded_while_workers_live_is_refused(small_set, numbers):
    """Persistent workers have copies of the stream as it was: they would begin at the first sample."""
    stream = open_stream(small_set, Setup(1, 2, 6), 0)
    loader = load(stream, persistent_workers=True)
    assert flatten(list(loader), numbers) == list(range(N))
    stream.load_state_dict(stream.state_dict(received=24))
    with pytest.raises(InputError, match="load_state_dict was called after the DataLoader's workers had started"):
        next(iter(loader))
    del loader
    gc.collect()  # ends the workers here
    loader = load(stream)
    assert flatten(list(loader), numbers) == list(range(24, N))


# State and bad input


def test_the_state_is_one_number_and_what_it_belongs_to(small_set):
    stream = TokenStream(small_set, seq_len=np.int64(SEQ_LEN), seed=5, rank=1, world_size=3)
    list(itertools.islice(stream, 4))
    assert json.loads(json.dumps(stream.state_dict())) == stream.state_dict()
    assert stream.state_dict() == {
        "samples": 12,
        "set": small_set.manifest_sha256,
        "split": "train",
        "seq_len": SEQ_LEN,
        "seed": 5,
        "order_version": 2,
    }
    assert len(pickle.dumps(stream)) < 2_500
    stream.load_state_dict(stream.state_dict() | {"samples": np.int64(7)})
    assert stream.state_dict()["samples"] == 7
