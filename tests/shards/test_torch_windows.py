"""`TokenWindows`: every sample is the tokens of its place, in any process, by any sampler; little is decoded for it."""

import pickle
import shutil
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, default_collate

from shards import ShardSet, ShardSetError, open_set
from shards.format import codec
from shards.format.shard import Shard
from shards.format.windows.order import WindowOrder
from shards.format.windows.window_reader import READS_FORWARD
from shards.format.writer import write_token_set
from shards.torch import TokenWindows, collate_windows
from tests.support.damage import flip
from tests.support.servers.hub import Hub
from tests.support.token_sets import EOS_ID, count_up, locate

SIZES = (1_000, 700, 30, 1_301)
SEQ_LEN = 32
pytestmark = pytest.mark.filterwarnings("ignore:.*shorter than one window")


@pytest.fixture(autouse=True)
def _small_frames(monkeypatch) -> None:
    """Let frames hold 64 tokens, so that a shard has many and a window lies in one or two."""
    monkeypatch.setattr(codec, "FRAME_BYTES", 128)


@pytest.fixture(scope="module")
def small_set(tmp_path_factory) -> ShardSet:
    """A set of four train shards, of which one is shorter than a window, and a val shard. Read only."""
    firsts = np.cumsum((0, *SIZES))
    train = [count_up(size, first=int(first)) for size, first in zip(SIZES, firsts, strict=False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "FRAME_BYTES", 128)
        return write_token_set(tmp_path_factory.mktemp("sets") / "s", {"train": train, "val": [count_up(200)]})


def straight(shard_set: ShardSet, number: int) -> list[int]:
    """Return a sample's window, read from its shard."""
    shards = shard_set.splits["train"]
    place = locate(WindowOrder([shard.num_tokens for shard in shards], seq_len=SEQ_LEN, seed=1337), number)
    return shards[place.shard].read(place.start, place.stop).tolist()


def test_a_sample_is_the_window_of_its_number(small_set):
    windows = TokenWindows(small_set, seq_len=SEQ_LEN, epochs=2)
    assert len(windows) == 2 * sum(max(0, (size - 1) // SEQ_LEN - 1) for size in SIZES)
    for number in range(len(windows)):
        sample, expected = windows[number], straight(small_set, number)
        assert sample["input_ids"].tolist() == expected[:-1]
        assert sample["labels"].tolist() == expected[1:]
    assert sample.keys() == {"input_ids", "labels"}
    assert {tensor.dtype for tensor in sample.values()} == {torch.int64}


def test_indices_are_those_of_a_list_and_integers_of_any_kind(small_set):
    windows = TokenWindows(small_set, seq_len=SEQ_LEN)
    length = len(windows)
    assert torch.equal(windows[-1]["input_ids"], windows[length - 1]["input_ids"])
    assert torch.equal(windows[-length]["labels"], windows[0]["labels"])
    assert torch.equal(windows[torch.tensor(5)]["labels"], windows[np.int64(5)]["labels"])
    for numbers in ([3, 1], np.array([3, 1], np.uint8), torch.tensor([3, 1]), range(3, 0, -2)):
        assert windows.read(numbers)["input_ids"].tolist() == [straight(small_set, n)[:-1] for n in (3, 1)]
    assert windows.read([])["labels"].shape == (0, SEQ_LEN)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_numbers_in_any_order(small_set, data):
    """Reads that go forward, and those that do not, while shards are decoded ahead."""
    with TokenWindows(small_set, seq_len=SEQ_LEN, epochs=3) as windows:
        last = len(windows) - 1
        for _ in range(data.draw(st.integers(1, 8))):
            start = data.draw(st.integers(0, last))
            step = data.draw(st.integers(1, 7))
            forward = list(range(start, min(last + 1, start + 20 * step), step))
            numbers = data.draw(st.one_of(st.just(forward), st.permutations(forward[:6])))
            for part in (numbers[:3], numbers[3:]):
                read = windows.read(part)
                assert read["input_ids"].shape == (len(part), SEQ_LEN)
                for row, number in enumerate(part):
                    assert read["input_ids"][row].tolist() == straight(small_set, number)[:-1]


@pytest.mark.parametrize("vocab_size", [300, 70_000])
@pytest.mark.parametrize("seq_len", [1, 31, 64, 65, 500])
def test_windows_over_several_frames_and_of_four_bytes_an_id(tmp_path, vocab_size, seq_len):
    shard_set = write_token_set(
        tmp_path / "set", {"train": [count_up(1_117, vocab_size=vocab_size)]}, vocab_size=vocab_size
    )
    tokens = shard_set.shards[0].read()
    windows = TokenWindows(shard_set, seq_len=seq_len, seed=3)
    for number in range(len(windows)):
        start = locate(windows.order, number).start
        assert windows[number]["labels"].tolist() == tokens[start + 1 : start + 1 + seq_len].tolist()


def test_only_the_frames_of_a_window_are_decoded(small_set, monkeypatch):
    decoded: list[int] = []
    decompress = codec.decompress_frame
    monkeypatch.setattr(
        codec,
        "decompress_frame",
        lambda tool, data, frames, number: decoded.append(number * 128) or decompress(tool, data, frames, number),
    )
    windows = TokenWindows(small_set, seq_len=SEQ_LEN)
    place = locate(windows.order, 0)
    windows[0]
    expected = {start for start in range(0, 20_000, 128) if place.start * 2 < start + 128 and start < place.stop * 2}
    assert set(decoded) == expected
    windows[0]
    assert len(decoded) == len(expected)  # a frame that is decoded stays


def test_reading_forward_decodes_ahead_and_no_further_than_needed(small_set, monkeypatch):
    threads: list[tuple[str, str]] = []
    into = Shard.read_into

    def read_into(self: Shard, out: np.ndarray, start: int, **options: int) -> None:
        threads.append((self.name, threading.current_thread().name.split("_")[0]))
        into(self, out, start, **options)

    monkeypatch.setattr(Shard, "read_into", read_into)
    order = TokenWindows(small_set, seq_len=SEQ_LEN).order
    first, second = (small_set.splits["train"][order.visit(n).shard].name for n in (0, order.visit(0).windows))

    def find_ahead(numbers: Iterable[int], **keys: int) -> set[str]:
        """Return the shards that are decoded ahead while samples are read."""
        with TokenWindows(small_set, seq_len=SEQ_LEN, **keys) as windows:
            for number in numbers:
                windows[number]
            windows._reader._pool.shutdown()
        return {name for name, thread in threads if thread == "decode-ahead"}

    assert find_ahead(range(READS_FORWARD)) == set()
    assert find_ahead((50, 3, 60, 61, 2, 80, 7, 8, 9, 1)) == set()
    assert find_ahead(range(READS_FORWARD + 1), samples=order.visit(0).windows) == {first}
    assert find_ahead(range(READS_FORWARD + 1), epochs=1) == {first, second}


def test_a_corrupt_frame_is_an_error_where_it_is_read(small_set, tmp_path):
    folder = shutil.copytree(small_set.path, tmp_path / "set")
    shard_set = open_set(folder)
    windows = TokenWindows(shard_set, seq_len=SEQ_LEN)
    place = locate(windows.order, 2)
    shard = shard_set.splits["train"][place.shard]
    frame = place.start * 2 // 128
    flip(folder / shard.tokens_file.name, shard.frames.bounds[frame + 1] - 1)  # in the frame's checksum
    with pytest.raises(ShardSetError, match=rf"{shard.name}.bin.zst: .*frame_corrupt"):
        windows[2]
    # The same of a thread that decodes ahead: the next read has its error.
    places = [(number, locate(windows.order, number)) for number in range(len(windows))]
    with pytest.raises(ShardSetError, match="frame_corrupt"):  # noqa: PT012
        for number, at in places * 2:
            if at.shard == place.shard and (at.start * 2 >= (frame + 1) * 128 or frame * 128 >= at.stop * 2):
                windows[number]
                windows._reader._pool.submit(int).result()  # after what it decodes ahead


def test_threads_that_need_the_same_frames_read_right_tokens(small_set, monkeypatch):
    """A frame that fails is decoded again when it is needed again."""
    decompress, failed = codec.decompress_frame, list[int]()

    def fail_once(tool: Any, data: Any, frames: codec.Frames, number: int) -> bytes:
        if number == 1 and not failed:
            failed.append(number)
            raise codec.CodecError("as if the disk had failed")
        return decompress(tool, data, frames, number)

    expected = [straight(small_set, number)[:-1] for number in range(89)]
    windows = TokenWindows(small_set, seq_len=SEQ_LEN)
    monkeypatch.setattr(codec, "decompress_frame", fail_once)
    with pytest.raises(ShardSetError, match="as if the disk had failed"):
        windows.read(range(len(windows)))
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(windows.read, [range(len(windows))] * 3):
            assert found["input_ids"].tolist() == expected


# Fields


def test_fields_say_where_documents_are(small_set):
    fields = ("position_ids", "document_ids", "cu_seqlens")
    windows = TokenWindows(small_set, seq_len=120, fields=fields)
    samples = [windows[number] for number in range(4)]
    for sample in samples:
        document, position, bounds = 0, 0, [0]
        for place, token in enumerate(sample["input_ids"].tolist()):
            assert (sample["document_ids"][place], sample["position_ids"][place]) == (document, position)
            position += 1
            if token == EOS_ID:
                document, position = document + 1, 0
                bounds += [place + 1]
        assert sample["cu_seqlens"].tolist() == sorted({*bounds, 120})
        assert sample["cu_seqlens"].dtype == torch.int32
    batch, read = collate_windows(samples), windows.read(range(4))
    assert batch.keys() == read.keys()
    assert all(torch.equal(batch[name], read[name]) for name in batch)
    fetched = collate_windows(windows.__getitems__(range(4)))  # as a DataLoader does
    assert batch.keys() == fetched.keys()
    assert all(torch.equal(batch[name], fetched[name]) for name in batch)
    joined = torch.cat([sample["cu_seqlens"][:-1] + 120 * row for row, sample in enumerate(samples)]).tolist()
    assert batch["cu_seqlens"].tolist() == [*joined, 480]
    with pytest.raises(RuntimeError, match="equal size"):  # why collate_windows is there
        default_collate(samples)


# Other processes


def test_a_pickle_is_small_and_gives_the_same_samples(small_set, monkeypatch):
    monkeypatch.chdir(small_set.path.parent)
    windows = TokenWindows(small_set.path.name, seq_len=SEQ_LEN, seed=5, fields=("document_ids",))
    expected, content = windows[7], pickle.dumps(windows)
    assert len(content) < 1_000
    monkeypatch.chdir("/")
    again = pickle.loads(content)
    assert len(again) == len(windows)
    assert again.identity == windows.identity
    assert all(torch.equal(again[7][name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1)])  # to spawn one takes two seconds
def test_workers_read_what_this_process_reads(tmp_path, start, workers, monkeypatch):
    """Forked from a process whose decoding thread and locks are in use."""
    monkeypatch.undo()  # spawned workers have frames of the usual size
    shard_set = write_token_set(tmp_path / "set", {"train": [count_up(5_000), count_up(4_000, first=5_000)]})
    with TokenWindows(shard_set, seq_len=SEQ_LEN) as windows:
        expected = windows.read(range(len(windows)))["labels"]
        for number in range(READS_FORWARD + 1):
            windows[number]
        loader = DataLoader(windows, batch_size=16, num_workers=workers, multiprocessing_context=start)
        assert torch.equal(torch.cat([batch["labels"] for batch in loader]), expected)


# Remote sets


@pytest.fixture
def hub(small_set, hub: Hub) -> Hub:
    hub.publish("tester/set", small_set.path)
    return hub


def test_a_set_on_the_hub_is_read_through_the_cache(hub, small_set, tmp_path):
    cache = tmp_path / "cache"
    with TokenWindows("hf://datasets/tester/set", seq_len=SEQ_LEN, cache=cache, cache_limit=1_000_000) as windows:
        assert windows[4]["labels"].tolist() == straight(small_set, 4)[1:]
        assert len([path for path in cache.glob("*/*") if path.is_file()]) == 1
        assert len(pickle.dumps(windows)) < 2_000
        read = windows.read(range(len(windows)))["labels"]
    assert torch.equal(read, TokenWindows(small_set, seq_len=SEQ_LEN).read(range(len(windows)))["labels"])


def test_an_open_remote_set_without_a_cache_is_read_by_frames(hub, small_set):
    opened = open_set("hf://datasets/tester/set")
    assert not [record for record in hub.requests if "train-" in record.path]  # metadata first
    opened.shards[0].read(0, 10)
    hub.forget()
    assert opened.shards[0].read(400, 500).tolist() == small_set.shards[0].read(400, 500).tolist()
    assert len([record for record in hub.requests if record.path.startswith("/cdn/")]) == 1
    with TokenWindows(opened, seq_len=SEQ_LEN, samples=90) as windows:
        read = [windows[number]["labels"].tolist() for number in range(90)]
    assert read == [straight(small_set, number)[1:] for number in range(90)]


# Bad input


@pytest.mark.filterwarnings("default")
def test_shards_without_a_window_are_named(small_set):
    with pytest.warns(UserWarning, match=r"shorter than one window of 32 \+ 1 tokens.*1 of 4 shards.*train-00002"):
        TokenWindows(small_set, seq_len=SEQ_LEN)
