"""A shard's documents: blocks of whole ones, their sources as numbers, and their hashes as plain code finds them."""

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import ShardSetError
from shards.format.content_hash import (
    HashRange,
    find_copies,
    find_hashes,
    hash_document,
    hash_documents,
    join_hashes,
    sort_hashes,
    split_column,
    split_hashes,
)
from shards.format.document_table import cut_blocks, number_token_sources
from shards.format.reader import open_set


@given(lengths=st.lists(st.integers(1, 40), max_size=30), block_tokens=st.integers(1, 60))
def test_blocks_are_as_long_as_they_may_be(lengths, block_tokens):
    ranges = list(cut_blocks(np.array(lengths, np.int64), block_tokens))
    assert [number for first, last in ranges for number in range(first, last)] == list(range(len(lengths)))
    for first, last in ranges:
        assert sum(lengths[first:last]) <= block_tokens or last == first + 1
        assert last == len(lengths) or sum(lengths[first : last + 1]) > block_tokens


def test_tokens_have_the_numbers_of_their_sources(good_set, plan):
    shard = open_set(good_set).shard("train-00001")
    documents = plan.documents["train"][1]
    expected = [document.source for document in documents for _ in document.tokens]
    for names, stop in ((["prose", "code"], shard.num_tokens), (["code", "other", "prose"], 1_000)):
        numbers = {name: number for number, name in enumerate(names)}
        assert [names[number] for number in number_token_sources(shard, numbers, stop)] == expected[:stop]
    with pytest.raises(ShardSetError, match=r"source 'prose' is not in the manifest; expected \['code'\]"):
        number_token_sources(shard, {"code": 0}, shard.num_tokens)


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_documents_of_a_column(texts):
    data, offsets = b"".join(texts), np.cumsum([0, *map(len, texts)])
    halves = hash_documents(memoryview(data), offsets)
    assert halves.dtype == np.uint64
    assert [(int(hi) << 64) + int(lo) for hi, lo in halves] == [xxhash.xxh3_128_intdigest(text) for text in texts]
    assert join_hashes(*halves.T).tobytes() == b"".join(map(hash_document, texts))
    assert sorted(map(hash_document, texts)) == [
        row.tobytes() for row in join_hashes(*halves[np.lexsort((halves[:, 1], halves[:, 0]))].T)
    ]


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=20), st.integers(0, 20))
def test_halves_of_a_sliced_column(hashes, first):
    column = pa.array(hashes, pa.binary(16))[first:]
    assert split_column(column).tolist() == split_hashes(b"".join(hashes[first:])).tolist()


TOP = (1 << 64) - 1
HALVES = st.one_of(st.sampled_from([0, 1, 1 << 54, 1 << 63, TOP]), st.integers(0, TOP))
HASHES = st.lists(st.tuples(HALVES, HALVES), max_size=40).flatmap(
    lambda hashes: st.lists(st.sampled_from(hashes), max_size=60) if hashes else st.just([])
)


def split(hashes: list[tuple[int, int]]) -> np.ndarray:
    return np.array(hashes, np.uint64).reshape(-1, 2).T


@given(HASHES, st.integers(0, 12))
def test_hashes_of_a_range_are_compared_as_plain_code_does(hashes: list[tuple[int, int]], bits: int) -> None:
    found: list[int] = []
    for number in {hi >> (64 - bits) for hi, _ in hashes}:
        part = HashRange(number, bits)
        (own,) = np.nonzero(part.holds(split(hashes)[0]))
        assert own.tolist() == [place for place, (hi, _) in enumerate(hashes) if hi >> (64 - bits) == number]
        assert all(part.start <= hashes[place][0] < HashRange(number + 1, bits).start for place in own)
        hi, lo = split([hashes[place] for place in own])
        assert part.meets(int(hi.min()), int(hi.max()))
        assert part.meets(0, int(hi.min()))
        assert part.meets(int(hi.max()), TOP)
        assert not number or not part.meets(0, part.start - 1)
        order, shared = sort_hashes(hi, lo, bits=bits)
        assert order.tolist() == sorted(range(len(own)), key=lambda place: hashes[own[place]])
        copies, originals = (own[places] for places in find_copies(hi, lo, order[shared]))
        for copy, original in zip(copies.tolist(), originals.tolist(), strict=True):
            assert original == hashes.index(hashes[copy]) < copy
        found += copies.tolist()
    assert len(found) == len(set(found)) == len(hashes) - len(set(hashes))


@given(HASHES, HASHES)
def test_hashes_are_found_in_a_list(hashes: list[tuple[int, int]], listed: list[tuple[int, int]]) -> None:
    listed = sorted(set(listed))
    found = find_hashes(*split(hashes), *split(listed))
    assert found.tolist() == [listed.index(one) if one in listed else -1 for one in hashes]
