"""The order in shards/FORMAT.md: its vectors and rules, read here without our code, give the windows of our code."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.format.windows.order import WindowOrder
from shards.format.windows.packed import RowOrder, order_split
from tests.support.packed_sets import make_documents, write_documents
from tests.support.token_sets import locate

PAGE = (Path(__file__).resolve().parents[2] / "shards/FORMAT.md").read_text(encoding="utf-8")
Places = list[tuple[int, int]]

# The page's rules in plain integers, with no numpy.


def generate_numbers(*key: int) -> Iterator[int]:
    words, constant = [len(key), *key], 0x43B0D7E5

    def scramble(value: int, factor: int) -> int:
        nonlocal constant
        value ^= constant
        constant = constant * factor % 2**32
        value = value * constant % 2**32
        return value ^ value >> 16

    def mix(x: int, y: int) -> int:
        mixed = (0xCA01F9DD * x - 0x4973F715 * y) % 2**32
        return mixed ^ mixed >> 16

    words += [0] * (4 - len(words))
    pool = [scramble(word, 0x931E8875) for word in words[:4]]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = mix(pool[target], scramble(pool[source], 0x931E8875))
    for word in words[4:]:
        for target in range(4):
            pool[target] = mix(pool[target], scramble(word, 0x931E8875))
    constant = 0x8B51F9DD
    out = [scramble(pool[index % 4], 0x58F38DED) for index in range(8)]
    high, low, more, less = (out[2 * index] + (out[2 * index + 1] << 32) for index in range(4))

    increment = 2 * ((more << 64) + less) + 1
    multiplier = 0x2360ED051FC65DA44385DF649FCCF645
    state = ((increment + (high << 64) + low) * multiplier + increment) % 2**128
    while True:
        state = (state * multiplier + increment) % 2**128
        folded, turn = (state >> 64) ^ (state % 2**64), state >> 122
        yield (folded >> turn | folded << (64 - turn)) % 2**64


def permute(size: int, *key: int) -> list[int]:
    numbers = [number for _, number in zip(range(size), generate_numbers(*key), strict=False)]
    return sorted(range(size), key=numbers.__getitem__)


def count_windows(tokens: int, length: int) -> int:
    fit = max(tokens - 1, 0) // length
    return fit - 1 if fit > 1 else fit


def find_offset(seed: int, shard: int, tokens: int, length: int, epoch: int) -> int:
    windows = count_windows(tokens, length)
    start = next(generate_numbers(seed, shard, 0, 0))
    return (start + epoch * 0x9E3779B97F4A7C15) % 2**64 * min(length, tokens - windows * length) // 2**64


def list_epoch(seed: int, length: int, shards: list[int], phases: list[str], epoch: int) -> Places:
    visits = permute(len(shards), seed, epoch)
    if phases:
        visits.sort(key=lambda shard: list(dict.fromkeys(phases)).index(phases[shard]))
    places: Places = []
    for shard in visits:
        windows = count_windows(shards[shard], length)
        if windows:
            offset = find_offset(seed, shard, shards[shard], length, epoch)
            places += [(shard, offset + place * length) for place in permute(windows, seed, epoch, shard)]
    return places


def read_table(head: str) -> list[list[str]]:
    """Return the rows of the page's table that begins so."""
    _, _, rest = PAGE.partition(f"| {head} |")
    rows = rest.split("\n\n")[0].splitlines()[2:]
    assert rows, head
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def integers(cell: str) -> list[int]:
    return [int(number, 0) for number in re.findall(r"0x[0-9A-F]+|\d+", cell)]


# The vectors


@pytest.mark.parametrize(("key", "numbers", "permutation"), read_table("key | numbers 0, 1, 2"))
def test_the_numbers_of_keys_are_those_of_the_page(key, numbers, permutation):
    found = generate_numbers(*integers(key))
    assert [next(found) for _ in range(3)] == integers(numbers)
    assert permute(8, *integers(key)) == integers(permutation)


@pytest.mark.parametrize("row", read_table("seed | shard"), ids=str)
def test_the_offsets_are_those_of_the_page(row):
    (seed, shard, tokens, length, windows), offsets = (int(cell) for cell in row[:5]), integers(row[5])
    assert count_windows(tokens, length) == windows
    assert [find_offset(seed, shard, tokens, length, epoch) for epoch in range(6)] == offsets
    order = WindowOrder([0] * shard + [tokens], seq_len=length, seed=seed)
    assert (order.windows[shard], order.find_offsets(shard, range(6))) == (windows, offsets)


@pytest.mark.parametrize("row", read_table("seed | `L`"), ids=str)
def test_the_samples_are_those_of_the_page(row):
    seed, length = (int(cell) for cell in row[:2])
    shards, phases = integers(row[2]), re.findall(r"\w+", row[3])
    per_epoch, first = int(row[4]), int(row[5])
    expected = [tuple(map(int, place.split(":"))) for place in row[6].split(", ")]
    epochs = [list_epoch(seed, length, shards, phases, epoch) for epoch in range(3)]
    assert {len(epoch) for epoch in epochs} == {per_epoch}
    assert [place for places in epochs for place in places][first : first + len(expected)] == expected
    order = WindowOrder(shards, seq_len=length, seed=seed, phases=phases)
    found = [locate(order, number) for number in range(first, first + len(expected))]
    assert [(at.shard, at.start) for at in found] == expected


# Packed rows


def list_row_epoch(seed: int, length: int, shards: list[list[int]], epoch: int) -> list[str]:
    """Return the rows of an epoch of sets without BOS, as the page writes them."""
    rows: list[str] = []
    for shard in permute(len(shards), seed, epoch):
        pieces = [
            (document, begin, min(length, tokens - begin))
            for document, tokens in enumerate(shards[shard])
            for begin in range(0, tokens, length)
        ]
        places = [pieces[number] for number in permute(len(pieces), seed, epoch, shard, 1)]
        plan: list[list[tuple[int, int, int]]] = []
        for piece in sorted(places, key=lambda piece: -piece[2]):
            rooms = [(length - sum(own[2] for own in row), number) for number, row in enumerate(plan)]
            fitting = [room for room in rooms if room[0] >= piece[2]]
            if fitting:
                plan[min(fitting)[1]].append(piece)
            else:
                plan.append([piece])
        for number in permute(len(plan), seed, epoch, shard):
            rows.append(" ".join(f"{shard}:{document}.{begin}+{slots}" for document, begin, slots in plan[number]))
    return rows


def list_our_rows(folder: Path, seed: int, length: int, shards: list[list[int]], samples: range) -> list[str]:
    shard_set = write_documents(folder, [make_documents(1, lengths) for lengths in shards])
    order = order_split(shard_set, seq_len=length, seed=seed, rows="packed")
    assert isinstance(order, RowOrder)
    rows: dict[int, list[str]] = {}
    for visit, numbers, places in order.group_by_visit(np.array(samples)):
        found = order.find_pieces(visit, places)
        for at in range(len(found.rows)):
            document = int(found.documents[at])
            begin = int(found.starts[at]) + 1 - sum(shards[visit.shard][:document])
            row = rows.setdefault(int(numbers[found.rows[at]]), [])
            row.append(f"{visit.shard}:{document}.{begin}+{found.slots[at]}")
    return [" ".join(rows[number]) for number in range(len(samples))]


@pytest.mark.parametrize("row", read_table("seed | `L` of rows"), ids=str)
def test_the_packed_rows_are_those_of_the_page(row, tmp_path):
    seed, length, per_epoch, first = (int(row[cell]) for cell in (0, 1, 3, 4))
    shards, expected = [integers(shard) for shard in row[2].split(";")], row[5].split(", ")
    epochs = [list_row_epoch(seed, length, shards, epoch) for epoch in range(2)]
    assert {len(epoch) for epoch in epochs} == {per_epoch}
    samples = range(first, first + len(expected))
    assert [place for places in epochs for place in places][first : samples.stop] == expected
    assert list_our_rows(tmp_path / "set", seed, length, shards, samples) == expected


@settings(max_examples=40, deadline=None)
@given(
    shards=st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=30), min_size=1, max_size=3),
    length=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_page_gives_the_packed_rows_of_the_code(shards, length, seed, tmp_path_factory):
    expected = [list_row_epoch(seed, length, shards, epoch) for epoch in (0, 1, 2)]
    samples = range(sum(map(len, expected)))
    found = list_our_rows(tmp_path_factory.mktemp("sets") / "set", seed, length, shards, samples)
    assert found == [row for rows in expected for row in rows]


# Sets of any sizes


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=4), min_size=1, max_size=3),
    length=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_page_gives_the_windows_of_the_code(sizes, length, seed):
    shards = [size for own in sizes for size in own]
    phases = [f"p{number}" for number, own in enumerate(sizes) for _ in own] if len(sizes) > 1 else []
    order = WindowOrder(shards, seq_len=length, seed=seed, phases=phases)
    for epoch in (0, 1, 2, 58):
        expected = list_epoch(seed, length, shards, phases, epoch)
        assert order.per_epoch == len(expected)
        first = epoch * order.per_epoch
        found = [locate(order, number) for number in range(first, first + order.per_epoch)]
        assert [(place.shard, place.start) for place in found] == expected
        assert {place.epoch for place in found} <= {epoch}


@settings(max_examples=100, deadline=None)
@given(length=st.integers(8, 3_000), seed=st.integers(0, 2**32 - 1), shard=st.integers(0, 9))
def test_the_first_epochs_cut_a_shard_far_from_each_other(length, seed, shard):
    order = WindowOrder([0] * shard + [length * 5], seq_len=length, seed=seed)
    for epochs in (2, 3, 4, 8):
        offsets = sorted(order.find_offsets(shard, range(epochs)))
        assert set(offsets) <= set(range(length))
        gaps = [later - earlier for earlier, later in zip(offsets, [*offsets[1:], offsets[0] + length], strict=True)]
        assert min(gaps) >= length / 2.24 / epochs - 1
