"""Places: the documents that hold a range of tokens, to the token."""

import numpy as np

from shards.format.reader import open_set
from shards.trace.locate import find_holders


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
