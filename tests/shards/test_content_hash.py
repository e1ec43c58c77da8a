"""Content hashes: the same as bytes, as halves and as hex, and the halves in the order of the bytes."""

import numpy as np
import pyarrow as pa
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shards.format.content_hash import hash_document, hash_documents, join_hashes, split_column, split_hashes


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
