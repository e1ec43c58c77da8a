"""Files of a set on the Hub that are not those that the manifest lists are told when the set is opened."""

import shutil
from pathlib import Path

import pytest

from shards import ShardSetError, open_set
from shards.stores.cache import Cache

URL = "hf://datasets/tester/set"


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("train-00000.bin.zst", rf"[\d,]+ bytes in {URL}; expected [\d,]+ by the manifest"),
        (None, rf"in the manifest, but not in {URL}"),
    ],
)
def test_a_set_on_the_hub_is_compared_with_its_listing(good_set, tmp_path, hub, other, told):
    folder = Path(shutil.copytree(good_set, tmp_path / "set"))
    (folder / "train-00001.bin.zst").unlink()
    if other:
        shutil.copy(folder / other, folder / "train-00001.bin.zst")
    told = rf"^train-00001\.bin\.zst: {told}\. Push or build it again; tokenmill validate {URL} finds what is damaged"
    hub.publish("tester/set", folder)
    for cache in (None, Cache(tmp_path / "cache", 10**9)):
        with pytest.raises(ShardSetError, match=told):
            open_set(URL, cache=cache)
    assert not [record for record in hub.requests if "/cdn/" in record.path]
