"""Files that are not those that the manifest lists: every reader tells, when it opens the set or reads a shard."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shards import ShardSetError, open_set
from shards.stores.cache import Cache
from shards.torch import TokenWindows
from tests.support.servers.hub import Hub, use_hub

URL = "hf://datasets/tester/set"
SEQ_LEN = 32
Damage = Callable[[Path], None]


def replaced(folder: Path) -> None:
    """Put the tokens file of another shard in the place of one."""
    shutil.copy(folder / "train-00000.bin.zst", folder / "train-00001.bin.zst")


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


@pytest.mark.parametrize("damage", TOLD)
def test_a_set_on_the_hub_is_compared_with_its_listing(good_set, tmp_path, monkeypatch, damage):
    folder = Path(shutil.copytree(good_set, tmp_path / "set"))
    damage(folder)
    with Hub() as server:
        server.publish("tester/set", folder)
        use_hub(server.url, monkeypatch)
        for cache in (None, Cache(tmp_path / "cache", 10**9)):
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
