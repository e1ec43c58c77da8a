"""Places: the documents that hold a range of tokens, to the token."""

import numpy as np
import pyarrow as pa
import pytest

from shards.errors import ShardSetError
from shards.format.reader import open_set
from shards.trace.excerpt import cut_excerpt
from shards.trace.locate import find_holders
from tests.support.shard_sets import write_set


def test_holders_of_a_range_are_the_documents_it_touches(good_set, plan):
    shard = open_set(good_set).shard("train-00000")
    documents = plan.documents["train"][0]
    bounds = np.cumsum([0] + [len(document.tokens) for document in documents]).tolist()
    ranges = [(bounds[3], bounds[4]), (bounds[3], bounds[3] + 1), (bounds[4] - 1, bounds[4]), (0, bounds[2])]
    ranges += [(bounds[5] - 1, bounds[5] + 1), (bounds[5] + 1, bounds[9] + 1), (bounds[-2], bounds[-1])]
    expected = [[3], [3], [3], [0, 1], [4, 5], [5, 6, 7, 8, 9], [len(documents) - 1]]
    found = find_holders(shard, ranges)
    assert [[place.document for place in places] for places in found] == expected
    for places in found:
        for place in places:
            document = documents[place.document]
            assert (place.start, place.tokens) == (bounds[place.document], len(document.tokens))
            assert (place.source, place.row, place.hash) == (document.source, document.row, document.hash.hex())
    assert find_holders(shard, []) == []


@pytest.mark.parametrize("change", [1, -1])
def test_table_with_a_gap_is_refused(plan, tmp_path, change):
    def move(name, table):
        starts = table["start"].to_pylist()
        starts[7] += change
        return table.set_column(0, table.schema.field("start"), pa.array(starts, pa.uint64()))

    write_set(tmp_path / "set", plan, table=move)
    shard = open_set(tmp_path / "set").shard("train-00000")
    start = sum(len(document.tokens) for document in plan.documents["train"][0][:7])
    assert [place.document for place in find_holders(shard, [(0, start - 2)])[0]] == list(range(7))
    with pytest.raises(ShardSetError, match="document_table"):
        find_holders(shard, [(start - 2, start + 3)])


def test_long_hit_is_cut_between_characters_and_told():
    text = ("é" * 300).encode()
    excerpt = cut_excerpt(b"before" + text + b"after", 6, 606, around=10)
    assert (excerpt.before, excerpt.hit, excerpt.after, excerpt.left_out) == ("before", "é" * 10, "", 580)
    excerpt = cut_excerpt(b"b" + text[:15] + b"after", 1, 16, around=10)
    assert (excerpt.left_out, excerpt.after) == (0, "after")
