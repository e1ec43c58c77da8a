"""Documents of an eval set that the training set holds too, found by content hash.

Reads the column of hashes of every document table of the training split once, batch by batch: memory grows with the
eval set only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shards import ShardSet
from shards.format.content_hash import split_hashes
from shards.format.document_table import iter_documents, read_hashes
from shards.format.equal_hashes import find_hashes, mark_first, sort_hashes
from shards.terminal.progress import show_progress


def find_held_documents(
    shard_set: ShardSet, hashes: npt.NDArray[np.uint64], name: str, *, show: bool = True
) -> npt.NDArray[np.bool_]:
    """Return which documents the training split of a set holds, bool `(documents,)`.

    Args:
        shard_set: the training set.
        hashes: the halves of the documents' content hashes, uint64 `(documents, 2)`.
        name: the eval set, for the progress.
        show: whether this process shows progress.

    Raises:
        ShardSetError: a document table is not what the manifest says.
    """
    # Each hash is looked for once, whatever the documents that have it.
    order, _ = sort_hashes(hashes[:, 0].copy(), hashes[:, 1].copy())
    hi, lo = hashes[order, 0], hashes[order, 1]
    first = mark_first(hi, lo)
    distinct_hi, distinct_lo = hi[first], lo[first]
    found = np.zeros(len(distinct_hi), np.bool_)
    shards = shard_set.splits.get("train", ())
    with show_progress(f"eval set {name}: documents held by training", unit="documents", show=show) as progress:
        done, total = 0, sum(shard.num_documents for shard in shards)
        for shard in shards:
            for batch in iter_documents(shard, ["hash"]):
                own = split_hashes(read_hashes(batch))
                places = find_hashes(own[:, 0].copy(), own[:, 1].copy(), distinct_hi, distinct_lo)
                found[places[places >= 0]] = True
                done += len(own)
                progress(done, total)
    held = np.empty(len(hashes), np.bool_)
    held[order] = found[np.cumsum(first) - 1]
    return held
