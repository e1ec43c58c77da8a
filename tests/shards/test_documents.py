"""A shard's document table: blocks of whole documents, and the sources of documents as numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import ShardSetError
from shards.format.document_blocks import cut_blocks
from shards.format.document_table import read_sources
from shards.format.reader import open_set


@given(lengths=st.lists(st.integers(1, 40), max_size=30), block_tokens=st.integers(1, 60))
def test_blocks_are_as_long_as_they_may_be(lengths, block_tokens):
    ranges = list(cut_blocks(np.cumsum(lengths, dtype=np.int64), block_tokens))
    assert [number for first, last in ranges for number in range(first, last)] == list(range(len(lengths)))
    for first, last in ranges:
        assert sum(lengths[first:last]) <= block_tokens or last == first + 1
        assert last == len(lengths) or sum(lengths[first : last + 1]) > block_tokens


def test_sources_are_numbered_in_the_order_given(good_set, plan):
    shard = open_set(good_set).shard("train-00001")
    for names in (["prose", "code"], ["code", "other", "prose"]):
        lengths, sources = read_sources(shard, names)
        documents = plan.documents["train"][1]
        assert lengths.tolist() == [len(document.tokens) for document in documents]
        assert [names[number] for number in sources] == [document.source for document in documents]
    with pytest.raises(ShardSetError, match=r"source 'prose' is not in the manifest; expected \['code'\]"):
        read_sources(shard, ["code"])
