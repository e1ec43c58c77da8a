"""A shard's tokens in memory: threads that need the same frames decode each once, and read what was written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shards import Shard, ShardSetError
from shards.format import codec
from shards.format.token_set import write_token_set
from shards.format.windows.decoded_frames import DecodedShard

TOKENS = 1_500_000
"""Three frames, the last of which is not full."""
STARTS = np.arange(0, TOKENS - 1_000, 1_000)


@pytest.fixture(scope="module")
def shard(tmp_path_factory) -> Shard:
    """A shard of text-like ids, which zstd compresses by copying from what it has decoded. Read only."""
    phrases = np.random.default_rng(1).integers(1, 5_000, (200, 40), dtype=np.uint16)
    ids = phrases[np.random.default_rng(2).zipf(1.3, TOKENS // 40) % 200].reshape(-1)
    ids[-1] = 0
    return write_token_set(tmp_path_factory.mktemp("sets") / "s", {"train": [ids]}).shards[0]


def take_at_once(held: DecodedShard, threads: int) -> list[Any]:
    """Return what as many threads get for the same windows, or the error that each gets."""
    gate = threading.Barrier(threads)

    def take(_: int) -> Any:
        gate.wait()
        try:
            return held.take(STARTS, 1_000)
        except ShardSetError as error:
            return error

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(take, range(threads)))


def test_threads_that_need_the_same_frames_read_right_tokens(shard):
    """Decoded by two threads at once, two frames out of three are wrong for some time."""
    expected = shard.read()[: len(STARTS) * 1_000].reshape(-1, 1_000)
    for _ in range(5):
        for windows in take_at_once(DecodedShard(shard), 3):
            assert np.array_equal(windows, expected)


def replace_decompression(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> None:
    decompress = codec.decompress_frame

    def slowly(tool: Any, data: Any, frame: codec.Frame) -> bytes:
        before(frame.start)
        return decompress(tool, data, frame)

    monkeypatch.setattr(codec, "decompress_frame", slowly)


def test_a_frame_that_failed_is_decoded_when_it_is_needed_again(shard, monkeypatch):
    decoded: list[int] = []

    def fail(start: int) -> None:
        decoded.append(start)
        if start == codec.FRAME_BYTES and decoded.count(start) <= 3:
            raise codec.CodecError("as if the disk had failed")

    replace_decompression(monkeypatch, fail)
    held = DecodedShard(shard)
    assert all(isinstance(found, ShardSetError) for found in take_at_once(held, 3))
    assert not held.is_whole
    windows = held.take(STARTS, 1_000)
    held.decode_rest()
    assert held.is_whole
    assert decoded.count(codec.FRAME_BYTES) == 4
    assert np.array_equal(windows[0], shard.read(0, 1_000))


def test_several_threads_decode_frames_in_a_row(shard, monkeypatch):
    threads: set[int] = set()

    def note(_: int) -> None:
        threads.add(threading.get_ident())
        time.sleep(0.02)

    replace_decompression(monkeypatch, note)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    DecodedShard(shard).take(STARTS, 1_000)
    assert len(threads) == 2
