"""Files that are not those that the manifest lists: every reader tells, when it opens the set or reads a shard."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from shards import ShardSetError, open_set
from shards.format.codec import SeekableWriter
from shards.stores.cache import Cache
from shards.torch import TokenWindows
from shards.trace.search import Query
from shards.trace.trace import trace
from tests.support.opened import record_opened
from tests.support.servers.hub import Hub, use_hub

URL = "hf://datasets/tester/set"
SEQ_LEN = 32
Damage = Callable[[Path], None]


def write_tokens(path: Path, tokens: np.ndarray) -> None:
    """Write a well-formed tokens file in the place of another."""
    with path.open("wb") as file:
        writer = SeekableWriter(file)
        writer.write(tokens)
        writer.close()


def replaced(folder: Path) -> None:
    """Write frames of other tokens over a shard: as many of them, but another number of bytes."""
    path = folder / "train-00001.bin.zst"
    before = path.stat().st_size
    shard = open_set(folder).shard("train-00001")
    write_tokens(path, np.arange(shard.num_tokens).astype(shard.dtype) % 256)
    assert path.stat().st_size != before


def missing(folder: Path) -> None:
    """Remove a shard's tokens file."""
    (folder / "train-00001.bin.zst").unlink()


TOLD = {
    replaced: r"^train-00001\.bin\.zst: [\d,]+ bytes in {place}; expected [\d,]+ by the manifest\. ",
    missing: r"^train-00001\.bin\.zst: in the manifest, but not in {place}\. ",
}


def told(damage: Damage, place: Path | str, remedy: str = "Copy, pull") -> str:
    """Return the pattern of the error of a set at a place."""
    pattern = TOLD[damage] + remedy + r" or build it again; tokenmill validate {place} finds what is damaged\. \["
    return pattern.format(place=re.escape(str(place)))


@pytest.fixture(scope="module", params=TOLD, ids=lambda damage: damage.__name__)
def damaged(request, good_set, tmp_path_factory):
    """A set with one damaged shard, and the damage. Read only."""
    folder = Path(shutil.copytree(good_set, tmp_path_factory.mktemp("damaged") / "set"))
    request.param(folder)
    return folder, request.param


def test_a_shard_of_another_size_or_none_is_told_when_the_set_is_opened(damaged):
    folder, damage = damaged
    with record_opened() as opened:
        for read in (
            open_set,
            partial(TokenWindows, seq_len=SEQ_LEN),
            partial(trace, query=Query("token", "5"), limit=1),
        ):
            with pytest.raises(ShardSetError, match=told(damage, folder)) as caught:
                read(folder)
    (problem,) = caught.value.problems
    assert problem.kind == {replaced: "file_size", missing: "file_missing"}[damage]
    assert not [path for path in opened if path.endswith((".zst", ".parquet"))]  # no shard is read for it


def test_a_set_on_the_hub_is_compared_with_its_listing(damaged, tmp_path, monkeypatch):
    folder, damage = damaged
    with Hub() as server:
        server.publish("tester/set", folder)
        use_hub(server.url, monkeypatch)
        for cache in (None, Cache(tmp_path, 10**9)):
            with pytest.raises(ShardSetError, match=told(damage, URL, "Push")):
                open_set(URL, cache=cache)
        assert not [record for record in server.requests if "/cdn/" in record.path]


@pytest.mark.parametrize("damage", TOLD)
def test_a_shard_that_changes_after_the_opening_is_told_when_it_is_first_read(good_set, tmp_path, damage):
    folder = Path(shutil.copytree(good_set, tmp_path / "set"))
    windows, shard = TokenWindows(folder, seq_len=SEQ_LEN), open_set(folder).shard("train-00001")
    damage(folder)
    readers = (shard.read, lambda: list(shard.iter_tokens()), lambda: windows.read(range(len(windows))))
    for read in readers:
        with pytest.raises(ShardSetError, match=told(damage, folder)):
            read()
    (folder / "train-00001.docs.parquet").unlink()
    with pytest.raises(ShardSetError, match=r"docs\.parquet: in the manifest, but not in .* Copy, pull or build it"):
        shard.documents()
