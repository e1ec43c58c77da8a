"""`take`: a share of a source's documents, by content hash. `test_fates.py` builds with several shares."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.mix import partitions as partitions_module
from pipeline.mix.cuts import cut_sources
from pipeline.mix.index import Axis, Index
from tests.support.builds import temporary_folder
from tests.support.runs import Document, corpus_of, keep_first, make_recipe, place_documents, write_runs

CORPORA = st.builds(corpus_of, st.integers(0, 1 << 32), st.integers(1, 3), st.integers(20, 150))


@settings(max_examples=60)
@given(
    sources=CORPORA,
    takes=st.lists(st.sampled_from([1.0, 0.75, 0.5, 2.0**-63, 2.0**-64, 0.3]), min_size=3, max_size=3),
    documents=st.sampled_from([1, 4, 1 << 24]),
)
def test_an_index_takes_what_plain_code_finds(
    sources: list[list[Document]], takes: list[float], documents: int
) -> None:
    recipe = make_recipe([1] * len(sources))
    own = [one.model_copy(update={"take": take}) for one, take in zip(recipe.sources, takes, strict=False)]
    kept = keep_first(sources)
    taken = [
        [one for one in own if take == 1 or one.key[0] < take * 2**64] for own, take in zip(kept, takes, strict=False)
    ]
    with pytest.MonkeyPatch.context() as patch, temporary_folder() as folder:
        patch.setattr(partitions_module, "PARTITION_DOCUMENTS", documents)
        runs = write_runs(Path(folder), sources, [[]] * len(sources))
        index = Index(runs, len(sources))
        index.drop_not_taken(own)
        for number, left in enumerate(taken):
            lengths = [document.length for document in left]
            counts = index.count_kept(number)
            assert (counts.documents, counts.tokens) == (len(left), sum(lengths))
            assert index.longest[:, number].max() == max(lengths, default=0)
            assert Axis(index, number).total == sum(lengths)
            gone = index.drops[number].dropped().get(f"not taken: take = {takes[number]}", 0)
            assert gone == len(kept[number]) - len(left)
        if all(taken):
            plan = cut_sources(recipe.model_copy(update={"sources": own}), index)
            placed = [item for items in place_documents(plan, runs, index).values() for item in items]
            assert {key for _, _, key, _ in placed} <= {one.key for own in taken for one in own}
