"""What reading over a network rests on: the cache of ranges, and ranges as a file."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.sources.base import SourceError
from shards.stores.cache import Cache
from tests.support.servers.hub import Hub

pytestmark = pytest.mark.long


def test_the_cache_gives_back_what_was_put_and_nothing_else(tmp_path: Path):
    cache = Cache(tmp_path / "cache", 10**6)
    cache.put("a", b"content")
    cache.put("empty", b"")
    assert Cache(tmp_path / "cache", 10**6).get("a") == b"content"
    assert cache.get("empty") == b""
    assert cache.get("b") is None
    (file,) = [path for path in (tmp_path / "cache").glob("*/*") if path.read_bytes().startswith(b"content")]
    whole = file.read_bytes()
    for damaged in (whole[:-1], b"C" + whole[1:], b""):
        file.write_bytes(damaged)
        assert cache.get("a") is None
    cache.put("a", b"content")
    assert cache.get("a") == b"content"
    cache.delete("a")
    assert cache.get("a") is None


def test_a_full_cache_lets_go_what_was_used_longest_ago(tmp_path: Path):
    cache = Cache(tmp_path / "cache", 10_000)
    for index in range(9):
        cache.put(str(index), bytes(1000))
    cache.get("0")  # used again
    for index in range(9, 14):
        cache.put(str(index), bytes(1000))
    kept = [index for index in range(14) if cache.get(str(index)) is not None]
    assert kept == [0, *range(6, 14)]
    held = sum(path.stat().st_size for path in (tmp_path / "cache").glob("*/*"))
    assert held <= 10_000
    cache.put("large", bytes(20_000))
    assert [cache.get(name) is None for name in ("large", "0", "13")] == [True, False, False]  # no room is made for it


def test_what_was_not_asked_for_is_never_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import huggingface_hub.constants
    from huggingface_hub import HfApi

    from pipeline.sources.hub_file import RangeFile

    folder = tmp_path / "someone" / "set"
    folder.mkdir(parents=True)
    (folder / "data.bin").write_bytes(np.random.default_rng(1).bytes(20_000_000))
    with Hub(tmp_path) as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        (info,) = HfApi(endpoint=hub.url).get_paths_info("someone/set", ["data.bin"], repo_type="dataset")
        assert info.lfs is not None
        url, version = f"hf://datasets/someone/set@{hub.commit('someone/set')}/data.bin", f"bytes, {info.lfs.sha256}"
        hub.faults.on("/cdn/", body=bytes(10))  # another file under the same address
        expected = "expected HTTP 206 with 'bytes 0-9/20000000'"
        with RangeFile(url, f"20000000 {version}") as file, pytest.raises(SourceError, match=expected):
            file.read(10)
        hub.faults.off()
        with RangeFile(url, f"30000000 {version}") as file, pytest.raises(SourceError, match="20000000"):
            file.read(10)
