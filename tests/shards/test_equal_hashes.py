"""Equal hashes: sorted, grouped and looked up as plain code does it, whatever halves they share and in any range."""

# pyright: basic

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shards.format.equal_hashes import HashRange, cover_hashes, find_copies, find_hashes, sort_hashes

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
        assert cover_hashes(hi) & part.coverage == cover_hashes(hi)
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
