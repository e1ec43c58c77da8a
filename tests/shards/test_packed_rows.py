"""Packed rows: every document once an epoch, whole and from its beginning, with its own targets; few slots are lost."""

import itertools
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data import _utils as torch_data

from shards import ShardSet
from shards.errors import ShardSetError
from shards.format import codec, writer
from shards.format.windows.packed import RowOrder, order_split, plan_rows
from shards.torch import TokenStream, TokenWindows, collate_windows
from tests.support.packed_sets import EOS, Ids, edit_manifest, make_documents, naive_targets, write_documents

SEQ_LEN, SHARDS = 40, 3
FIELDS = ("position_ids", "document_ids", "cu_seqlens")


@pytest.fixture(autouse=True)
def _small_frames(monkeypatch) -> None:
    """Let frames hold 64 tokens, so that a shard has many; workers end soon."""
    monkeypatch.setattr(torch_data, "MP_STATUS_CHECK_INTERVAL", 0.2)
    monkeypatch.setattr(codec, "FRAME_BYTES", 128)


def make_shards(*, bos: bool = False, chat: bool = False, longest: int) -> list[list[Ids]]:
    random = np.random.default_rng(3)
    lengths = [random.integers(2, longest + 1, 70).tolist() for _ in range(SHARDS)]
    return [make_documents(seed, own, bos=bos, chat=chat) for seed, own in enumerate(lengths)]


@pytest.fixture
def texts(tmp_path) -> ShardSet:
    """A set of texts, some longer than a row."""
    return write_documents(tmp_path / "texts", make_shards(longest=100))


def take_apart(batch: dict[str, torch.Tensor]) -> list[list[tuple[Ids, Ids]]]:
    """Return the documents of each row: what is fed, and what is predicted."""
    rows: list[list[tuple[Ids, Ids]]] = []
    for ids, labels, numbers, positions in zip(
        *(batch[name].tolist() for name in ("input_ids", "labels", "document_ids", "position_ids")), strict=True
    ):
        parts = [list(part) for _, part in itertools.groupby(range(len(ids)), numbers.__getitem__)]
        assert [numbers[part[0]] for part in parts] == list(range(len(parts)))
        assert [positions[slot] for slot in itertools.chain(*parts)] == [n for part in parts for n in range(len(part))]
        rows.append([([ids[slot] for slot in part], [labels[slot] for slot in part]) for part in parts])
    return rows


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_every_document_is_read_once_an_epoch_from_what_stands_before_it(tmp_path, bos, chat):
    shards = make_shards(bos=bos, chat=chat, longest=SEQ_LEN if chat else 100)
    shard_set = write_documents(tmp_path / "set", shards, bos=bos, chat=chat)
    epochs: list[list[str]] = []
    with TokenWindows(shard_set, seq_len=SEQ_LEN, epochs=2, rows="packed", fields=FIELDS) as windows:
        order = windows.order
        assert isinstance(order, RowOrder)
        for epoch in range(2):
            rows = take_apart(windows.read(range(epoch * order.per_epoch, (epoch + 1) * order.per_epoch)))
            read, pieces, filled, targets = Counter[tuple[Any, ...]](), list[tuple[Ids, Ids]](), 0, 0
            for fed, told in itertools.chain(*rows):
                if set(told) == {-100} and set(fed) == {EOS}:
                    continue  # padding
                filled, targets = filled + len(fed), targets + sum(label != -100 for label in told)
                pieces.append((fed, told))
            for document in itertools.chain(*shards):
                before, own = ([], document) if bos else ([EOS], document)
                wanted = [token if counts else -100 for token, counts in zip(own, naive_targets(own), strict=True)]
                fed, told = [*before, *own][:-1], wanted[1:] if bos else wanted
                for begin in range(0, len(told), SEQ_LEN):
                    read[tuple(fed[begin : begin + SEQ_LEN]), tuple(told[begin : begin + SEQ_LEN])] += 1
            assert Counter((tuple(fed), tuple(told)) for fed, told in pieces) == read
            assert (filled, targets) == (order.slots, order.targets)
            assert order.waste == pytest.approx(1 - filled / (order.per_epoch * SEQ_LEN))
            epochs.append([str(row) for row in rows])
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) != sorted(epochs[1])  # other documents of a length are together


def test_seed_and_process_change_no_count_of_rows_and_lengths_are_read_once(texts, monkeypatch):
    """What is known of lengths is kept in the user's cache."""
    first = TokenWindows(texts, seq_len=SEQ_LEN, rows="packed", fields=FIELDS)
    with monkeypatch.context() as patch:
        patch.setattr("shards.format.windows.packed._read_lengths", None)
        other = TokenWindows(texts, seq_len=SEQ_LEN, rows="packed", seed=5)
        again = pickle.loads(pickle.dumps(first))
    assert len(pickle.dumps(first)) < 1_200
    assert len(first) == len(other) == len(again)
    assert all(torch.equal(tensor, again[3][name]) for name, tensor in first[3].items())
    assert not torch.equal(other[3]["input_ids"], again[3]["input_ids"])


def test_batches_are_their_samples_and_boundaries_are_those_of_documents(texts):
    windows = TokenWindows(texts, seq_len=SEQ_LEN, rows="packed", fields=FIELDS)
    samples, read = [windows[number] for number in range(9)], windows.read(range(9))
    batch = collate_windows(samples)
    assert all(torch.equal(batch[name], read[name]) for name in read)
    lengths = [len(fed) for fed, _ in itertools.chain(*take_apart(read))]
    assert batch["cu_seqlens"].tolist() == [0, *itertools.accumulate(lengths)]
    numbers = [30, 2, 61, 5, 6, 7, 8, 9, 10, 11, 12, 3]
    for begin in range(0, 12, 3):  # any order, and while shards are decoded ahead
        part = windows.read(numbers[begin : begin + 3])["labels"].tolist()
        assert part == [windows[number]["labels"].tolist() for number in numbers[begin : begin + 3]]


def test_a_stream_goes_on_with_other_ranks_workers_and_batches(texts):
    expected = TokenWindows(texts, seq_len=SEQ_LEN, rows="packed").read(range(60))["labels"].tolist()
    state, read = None, list[Ids]()
    for ranks, workers, batch, steps in ((1, 0, 4, 3), (2, 2, 3, 4), (3, 0, 2, 3), (1, 2, 6, 1)):
        taken: list[list[Ids]] = []
        for rank in range(ranks):
            sizes = {"rank": rank, "world_size": ranks, "batch_size": batch}
            stream = TokenStream(texts, seq_len=SEQ_LEN, rows="packed", **sizes)
            if state is not None:
                stream.load_state_dict(state)
            how: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
            parts = itertools.islice(DataLoader(stream, batch_size=None, **how), steps)
            taken.append([row for part in parts for row in part["labels"].tolist()])
        state = stream.state_dict(received=len(taken[-1]))
        read += [row for rows in zip(*taken, strict=True) for row in rows]
    assert read == expected
    assert state["samples"] == 60
    assert (state["rows"], state["order_version"]) == ("packed", 3)


@pytest.mark.parametrize("seq_len", [512, 2_048])
def test_at_most_a_hundredth_of_the_slots_or_three_rows_are_padding(seq_len):
    random = np.random.default_rng(7)
    for sizes in (random.uniform(2, seq_len / 2, 20_000), random.exponential(seq_len / 9, 300), [30] * 50, [5]):
        slots = np.clip(np.asarray(sizes).astype(np.int64), 1, seq_len // 2)
        rows = plan_rows(np.bincount(slots, minlength=seq_len + 1), seq_len)
        floor = -(-int(slots.sum()) // seq_len)
        assert rows.max() + 1 - floor <= max(3, floor // 100)
        filled = np.bincount(rows, np.sort(slots)[::-1])
        assert filled.max() <= seq_len


# Bad input


@pytest.mark.parametrize(
    ("lengths", "more", "message"),
    [
        ([9, 9, 22], -1, r"document 2 has 22 tokens.*at most 39 in all"),
        ([9, 9, 22], 1, r"lengths add up to 40; expected 41 tokens"),
        ([9, 10, 21], 0, r"by it document \d (ends without EOS|has an EOS before its end)"),
        ([9, 8, 23], 0, r"by it document \d (ends without EOS|has an EOS before its end)"),
    ],
)
def test_a_table_that_lies_is_found(tmp_path, monkeypatch, lengths, more, message):
    told, held = (np.concatenate(make_documents(1, own)) for own in (lengths, [9, 9, 22]))
    make_table = writer.make_token_table
    monkeypatch.setattr(writer, "make_token_table", lambda _, *of: make_table(held if of[1] else told, *of))
    writer.write_token_set(tmp_path / "set", {"train": [held], "val": [held]}, vocab_size=300, eos_id=EOS)
    shard_set = edit_manifest(tmp_path / "set", lambda m: m["shards"][0].update(tokens=40 + more))
    with pytest.raises(ShardSetError, match=rf"train-00000.*{message}.*document_table"):
        collate_windows([*TokenWindows(shard_set, seq_len=SEQ_LEN, rows="packed")])


def test_much_padding_is_said_with_what_helps(tmp_path: Path) -> None:
    for better, lengths in {"rows": [20] * 300, "shards": [8] * 9}.items():
        shard_set = write_documents(tmp_path / better, [make_documents(1, lengths)])
        order: Any = order_split(shard_set, seq_len=32, seed=0, rows="packed")
        assert order.describe(2).endswith(f". Longer {better} waste less")
