"""`shards.torch` over a set in a bucket: with and without the cache, and in a DataLoader's workers."""

import pytest
import torch
from torch.utils.data import DataLoader

from shards import ShardSet
from shards.format.writer import write_token_set
from shards.torch import TokenStream, TokenWindows
from tests.support.servers.objects import BUCKET, upload
from tests.support.token_sets import count_up

pytestmark = pytest.mark.long


PLACE = f"s3://{BUCKET}/sets/torch"
SEQ_LEN, BATCH = 32, 16


@pytest.fixture(scope="module")
def small_set(tmp_path_factory) -> ShardSet:
    """A set of three train shards. Read only."""
    train = [count_up(2_000, first=first) for first in (0, 2_000, 4_000)]
    return write_token_set(tmp_path_factory.mktemp("sets") / "s", {"train": train})


@pytest.fixture
def bucket(server, small_set) -> None:
    """The server has the set at `PLACE`."""
    upload(small_set.path, PLACE)


def all_labels(shard_set: ShardSet) -> torch.Tensor:
    windows = TokenWindows(shard_set, seq_len=SEQ_LEN)
    return windows.read(range(len(windows)))["labels"]


def test_workers_read_what_this_process_reads(bucket, small_set, tmp_path):
    stream = TokenStream(PLACE, seq_len=SEQ_LEN, batch_size=BATCH, cache=tmp_path)
    # Not of a fork server: another test may have started that of this process, with another server in its environment.
    loader = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    assert torch.equal(torch.cat([part["labels"] for part in loader]), all_labels(small_set))


def test_a_forked_worker_is_refused_and_does_not_hang(bucket, tmp_path):
    windows = TokenWindows(PLACE, seq_len=SEQ_LEN, cache=tmp_path)
    loader = DataLoader(windows, batch_size=BATCH, num_workers=1, multiprocessing_context="fork", timeout=60)
    with pytest.raises(RuntimeError, match=r"(?s)worker.*forked from .* multiprocessing_context=.forkserver"):
        next(iter(loader))


def test_forked_workers_read_shards_that_are_in_the_cache(bucket, small_set, tmp_path):
    with TokenWindows(PLACE, seq_len=SEQ_LEN, cache=tmp_path) as windows:
        expected = windows.read(range(len(windows)))["labels"]
        loader = DataLoader(windows, batch_size=BATCH, num_workers=2, multiprocessing_context="fork", timeout=60)
        assert torch.equal(torch.cat([part["labels"] for part in loader]), expected)
    assert torch.equal(expected, all_labels(small_set))
